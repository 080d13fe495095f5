"""Images (one EROFS file each) and the templates made from them."""
