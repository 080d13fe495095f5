"""All tables of the program: importing this module declares them, for migrations and their tests."""

from sqlalchemy import MetaData

from forkyard.auth import models as auth_models
from forkyard.sandboxes import models as sandbox_models
from forkyard.storage.models import Base

__all__ = ["METADATA", "auth_models", "sandbox_models"]

METADATA: MetaData = Base.metadata
