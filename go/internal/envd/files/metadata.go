package files

import (
	"net/http"
	"strings"
)

const (
	metadataHeader   = "X-Metadata-"
	attributePrefix  = "user.e2b."
	maxMetadataKey   = 246
	maxMetadataTotal = 4096 // keys with their prefix, and values
)

// readMetadata takes the metadata for a file from the headers of its upload.
func readMetadata(header http.Header) (map[string]string, error) {
	metadata := map[string]string{}
	total := 0
	for name, values := range header {
		if len(name) < len(metadataHeader) || !strings.EqualFold(name[:len(metadataHeader)], metadataHeader) || len(values) == 0 {
			continue
		}
		key, value := strings.ToLower(name[len(metadataHeader):]), values[0]
		switch {
		case key == "":
			return nil, fail(http.StatusBadRequest, "a metadata key is empty")
		case len(key) > maxMetadataKey:
			return nil, fail(http.StatusBadRequest, "metadata key '%s' is longer than %d bytes", key, maxMetadataKey)
		case !printable(key) || !printable(value):
			return nil, fail(http.StatusBadRequest, "metadata '%s' holds other than printable ASCII characters", key)
		}
		metadata[key] = value
		total += len(attributePrefix) + len(key) + len(value)
	}
	if total > maxMetadataTotal {
		return nil, fail(http.StatusBadRequest, "the metadata is larger than %d bytes", maxMetadataTotal)
	}
	return metadata, nil
}

func printable(text string) bool {
	for i := range len(text) {
		if text[i] < 0x20 || text[i] > 0x7e {
			return false
		}
	}
	return true
}
