//go:build !forkyard_runtime

package runtime

// installHooks refuses: gVisor's module as it is published has no hooks. Tests and linters compile this.
func installHooks() error { return errUnpatched }
