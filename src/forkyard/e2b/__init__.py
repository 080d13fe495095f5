"""The E2B wire contract: routes, schemas and error bodies, one file per resource."""
