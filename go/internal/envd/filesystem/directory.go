package filesystem

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
)

// MakeDirs makes a directory and its missing parents, mode 0755, owned by the user. It runs with the
// rights of the calling thread; where that is root's, it hands over what it made.
func MakeDirs(path string, user users.User) error {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return &os.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parent := filepath.Dir(path); parent != path {
		if err := MakeDirs(parent, user); err != nil {
			return err
		}
	}
	err = os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil // another call made it in between
	}
	if err != nil {
		return err
	}
	return os.Chown(path, int(user.UID), int(user.GID))
}

// makeDir is MakeDirs for a directory that must not be there yet.
func makeDir(path string, user users.User) error {
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return connect.Errorf(connect.CodeAlreadyExists, "directory already exists: %s", path)
		}
		return connect.Errorf(connect.CodeInvalidArgument, "path already exists but it is not a directory: %s", path)
	}
	return MakeDirs(path, user)
}

// move renames; missing parents of the destination are made.
func move(source, destination string, user users.User) error {
	if _, err := os.Lstat(source); err != nil {
		return err
	}
	if err := MakeDirs(filepath.Dir(destination), user); err != nil {
		return err
	}
	return os.Rename(source, destination)
}

// remove removes a path and all below it; a missing path is fine.
func remove(path string) error {
	if path == "/" {
		return connect.Errorf(connect.CodeInvalidArgument, "the root directory cannot be removed")
	}
	return os.RemoveAll(path)
}
