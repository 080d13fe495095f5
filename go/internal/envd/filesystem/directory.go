package filesystem

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"forkyard.dev/forkyard/internal/envd/asuser"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
)

// MakeDirs makes a directory and its missing parents with the rights of the user, mode 0755 and owned by
// it. One exception: a missing directory directly below / is made for any user. E2B's daemon makes
// everything as root, and programs written for it count on /code, /app and the like; all else that
// belongs to root stays out of reach here.
func MakeDirs(path string, user users.User) error {
	err := asuser.Run(user, func() error { return makeDirs(path, user) })
	if !errors.Is(err, fs.ErrPermission) || !makeTopDir(path, user) {
		return err
	}
	return asuser.Run(user, func() error { return makeDirs(path, user) })
}

// makeTopDir makes the first directory of a path for the user; false if it was there or cannot be made.
func makeTopDir(path string, user users.User) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	if first == "" || os.Mkdir("/"+first, 0o755) != nil {
		return false
	}
	return os.Lchown("/"+first, int(user.UID), int(user.GID)) == nil
}

// makeDirs runs with the rights of the calling thread; where that is root's, it hands over what it made.
func makeDirs(path string, user users.User) error {
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
		if err := makeDirs(parent, user); err != nil {
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
	err := asuser.Run(user, func() error {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil
		case info.IsDir():
			return connect.Errorf(connect.CodeAlreadyExists, "directory already exists: %s", path)
		default:
			return connect.Errorf(connect.CodeInvalidArgument, "path already exists but it is not a directory: %s", path)
		}
	})
	if err != nil {
		return err
	}
	return MakeDirs(path, user)
}

// move renames; missing parents of the destination are made.
func move(source, destination string, user users.User) error {
	err := asuser.Run(user, func() error {
		_, err := os.Lstat(source)
		return err
	})
	if err == nil {
		err = MakeDirs(filepath.Dir(destination), user)
	}
	if err != nil {
		return err
	}
	return asuser.Run(user, func() error { return os.Rename(source, destination) })
}

// remove removes a path and all below it; a missing path is fine.
func remove(path string) error {
	if path == "/" {
		return connect.Errorf(connect.CodeInvalidArgument, "the root directory cannot be removed")
	}
	return os.RemoveAll(path)
}
