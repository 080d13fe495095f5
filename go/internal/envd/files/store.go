package files

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/asuser"
	"forkyard.dev/forkyard/internal/envd/filesystem"
	"forkyard.dev/forkyard/internal/envd/users"
)

// content is what shall be stored where.
type content struct {
	user     users.User
	path     string // absolute
	metadata map[string]string
	body     io.Reader
}

// target is an opened destination.
type target struct {
	file  *os.File
	isNew bool
	size  int64 // before the write
	uid   uint32
}

// store writes a file. A new one is written in place, and removed if that fails. An existing one is
// replaced only when the whole body is there, and keeps its inode: its old content survives a connection
// that breaks and a disk that is full.
func (h *Handler) store(c content) error {
	_, err := os.Stat(c.path)
	var waiting *spool
	if err == nil {
		if err := checkWritable(c); err != nil {
			return err
		}
		if waiting, err = h.newSpool(c.body, filepath.Dir(c.path)); err != nil {
			return err
		}
		defer waiting.close()
	}
	defer h.locks.lock(c.path)()
	to, err := openTarget(c.user, c.path)
	if err != nil {
		return err
	}
	defer func() { _ = to.file.Close() }()
	switch {
	case to.isNew && waiting == nil:
		return fillNew(to, c, c.body)
	case to.isNew: // it was removed meanwhile
		return fillNew(to, c, waiting.section(0, waiting.size))
	case waiting == nil: // it was made meanwhile
		if waiting, err = h.newSpool(c.body, filepath.Dir(c.path)); err != nil {
			return err
		}
		defer waiting.close()
	}
	return replace(to, c, waiting)
}

// checkWritable fails for an existing file before its new body is read.
func checkWritable(c content) error {
	to, err := openTarget(c.user, c.path)
	if err != nil {
		return err
	}
	if to.isNew { // the old one was removed just now: leave that as it is
		undoNew(to, c.user)
	}
	return to.file.Close()
}

// openTarget opens the file for writing with the rights of the user, and makes it and its directories if
// they are missing. An existing file is not changed.
func openTarget(user users.User, path string) (*target, error) {
	to, err := openIn(user, path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := filesystem.MakeDirs(filepath.Dir(path), user); err != nil {
			return nil, err
		}
		to, err = openIn(user, path)
	}
	if err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(to.file.Fd()), &stat); err != nil {
		_ = to.file.Close()
		return nil, err
	}
	to.size, to.uid = stat.Size, stat.Uid
	return to, nil
}

// openIn is openTarget for a directory that exists.
func openIn(user users.User, path string) (*target, error) {
	to := &target{}
	err := asuser.Run(user, func() error {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) && exists(path) {
			file, to.isNew, err = openExisting(path)
		} else {
			to.isNew = err == nil
		}
		to.file = file
		return err
	})
	return to, err
}

// exists tells a file in a directory where no new one may be made.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func openExisting(path string) (file *os.File, isNew bool, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a link to nothing: writing makes what it names
		file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
		return file, true, err
	case err != nil:
		return nil, false, err
	case info.IsDir():
		return nil, false, fail(http.StatusBadRequest, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		return nil, false, fail(http.StatusBadRequest, "path '%s' is not a regular file", path)
	}
	file, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	return file, false, err
}

// fillNew writes a new file: owner, then metadata, then content, in the order watchers expect.
func fillNew(to *target, c content, body io.Reader) (err error) {
	defer func() {
		if err != nil {
			undoNew(to, c.user)
		}
	}()
	if err := to.file.Chown(int(c.user.UID), int(c.user.GID)); err != nil {
		return err
	}
	if err := writeMetadata(to, c); err != nil {
		return err
	}
	return copyBody(to.file, body)
}

// undoNew removes a file that was made in vain, by the name it has now, with the rights of who made it:
// somebody may put another file there in the meantime.
func undoNew(to *target, user users.User) {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(to.file.Fd())))
	if err != nil {
		return
	}
	_ = asuser.Run(user, func() error {
		var opened, named unix.Stat_t
		if unix.Fstat(int(to.file.Fd()), &opened) == nil && unix.Lstat(name, &named) == nil &&
			opened.Ino == named.Ino && opened.Dev == named.Dev {
			return unix.Unlink(name)
		}
		return nil
	})
}

// replace puts the body into an existing file. What lies beyond the old end is written first: only that
// needs new space, and can be taken back.
func replace(to *target, c content, body *spool) error {
	if body.size > to.size {
		tail := io.NewOffsetWriter(to.file, to.size)
		if err := copyBody(tail, body.section(to.size, body.size-to.size)); err != nil {
			_ = to.file.Truncate(to.size)
			return err
		}
	}
	if err := copyBody(io.NewOffsetWriter(to.file, 0), body.section(0, min(to.size, body.size))); err != nil {
		return err
	}
	if body.size < to.size {
		if err := to.file.Truncate(body.size); err != nil {
			return err
		}
	}
	if c.user.UID == 0 && to.uid != 0 {
		if err := to.file.Chown(int(c.user.UID), int(c.user.GID)); err != nil {
			return err
		}
	}
	return writeMetadata(to, c)
}

func writeMetadata(to *target, c content) error {
	err := filesystem.WriteMetadata(to.file, c.metadata, to.isNew)
	if errors.Is(err, unix.ENOTSUP) {
		return fail(http.StatusBadRequest, "the filesystem of '%s' cannot hold metadata", c.path)
	}
	return err
}
