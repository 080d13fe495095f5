package watch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/connect"
)

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// maxDirectories bounds one recursive watch; it is the number of watches the kernel gives by default.
const maxDirectories = 65536

// tree maps the inotify watches of one watcher to the directories they are on.
type tree struct {
	fd        int
	root      string
	recursive bool
	dirs      map[int32]string // watch -> path relative to root, "" for root itself
	watches   map[string]int32 // the same the other way round
	// announced are names that a scan of a new directory has reported already, and for which the kernel
	// may still deliver a creation.
	announced map[string]bool
}

func newTree(fd int, root string, recursive bool) *tree {
	return &tree{fd: fd, root: root, recursive: recursive, dirs: map[int32]string{}, watches: map[string]int32{}, announced: map[string]bool{}}
}

func (t *tree) path(relative string) string { return filepath.Join(t.root, relative) }

// add watches a directory and, if recursive, all below it. report, if not nil, is called for everything
// found inside: a directory that is new may have been filled before the watch was on it.
func (t *tree) add(relative string, report func(relative string, info os.FileInfo)) error {
	if len(t.dirs) >= maxDirectories {
		return connect.Errorf(connect.CodeResourceExhausted, "more than %d directories to watch below '%s'", maxDirectories, t.root)
	}
	wd, err := unix.InotifyAddWatch(t.fd, t.path(relative), watchMask)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES):
		return nil // gone again, or nothing to see
	case errors.Is(err, unix.ENOSPC):
		return connect.Errorf(connect.CodeResourceExhausted, "the system allows no more watched directories")
	case err != nil:
		return connect.Errorf(connect.CodeInternal, "watching '%s' failed: %v", t.path(relative), err)
	}
	if old, known := t.dirs[int32(wd)]; known && old != relative {
		delete(t.watches, old) // the same directory under its new name
	}
	t.dirs[int32(wd)], t.watches[relative] = relative, int32(wd)
	if !t.recursive {
		return nil
	}
	return t.addBelow(relative, report)
}

func (t *tree) addBelow(relative string, report func(string, os.FileInfo)) error {
	entries, err := os.ReadDir(t.path(relative))
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		child := filepath.Join(relative, entry.Name())
		if report != nil {
			if info, err := entry.Info(); err == nil {
				t.announced[child] = true
				report(child, info)
			}
		}
		if _, watched := t.watches[child]; entry.IsDir() && !watched {
			if err := t.add(child, report); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget drops a watch the kernel has removed.
func (t *tree) forget(wd int32) {
	relative, known := t.dirs[wd]
	if !known {
		return
	}
	delete(t.dirs, wd)
	if t.watches[relative] == wd {
		delete(t.watches, relative)
	}
}

// remove stops watching a directory that has left the tree, and all below it.
func (t *tree) remove(relative string) {
	for _, wd := range t.below(relative) {
		_, _ = unix.InotifyRmWatch(t.fd, uint32(wd))
		t.forget(wd)
	}
}

// rename gives a directory that was moved within the tree, and all below it, their new paths.
func (t *tree) rename(from, to string) {
	for _, wd := range t.below(from) {
		old := t.dirs[wd]
		moved := to + strings.TrimPrefix(old, from)
		if t.watches[old] == wd {
			delete(t.watches, old)
		}
		t.dirs[wd], t.watches[moved] = moved, wd
	}
}

func (t *tree) below(relative string) []int32 {
	var found []int32
	for wd, path := range t.dirs {
		if path == relative || strings.HasPrefix(path, relative+"/") {
			found = append(found, wd)
		}
	}
	return found
}
