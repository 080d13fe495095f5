// Package watch reports changes below a directory, from the kernel's inotify, as the protocol words them.
package watch

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/connect"
)

// EventType is the enum of the protocol.
type EventType string

// What can happen to a file.
const (
	Create EventType = "EVENT_TYPE_CREATE"
	Write  EventType = "EVENT_TYPE_WRITE"
	Remove EventType = "EVENT_TYPE_REMOVE"
	Rename EventType = "EVENT_TYPE_RENAME" // the old name; the new one is created
	Chmod  EventType = "EVENT_TYPE_CHMOD"
)

// Event says what happened to a path, which is relative to the watched directory.
type Event struct {
	Path string
	Type EventType
}

// maxQueued bounds the events that wait for a client which does not fetch them.
const maxQueued = 65536

// HiddenPrefix starts the names of files that envd itself makes for a moment; they are not reported.
const HiddenPrefix = ".forkyard-upload-"

// Watcher watches one directory, or with recursive a whole tree, directories made later included.
type Watcher struct {
	file *os.File

	mu      sync.Mutex
	tree    *tree
	queue   []Event
	failure error // why there will be no more events
	moved   *movedFrom
	changed chan struct{} // holds a token when there is something new to take
	buffer  []byte
}

// movedFrom is the first half of a rename, until its second half comes.
type movedFrom struct {
	path   string
	cookie uint32
	isDir  bool
}

// New starts to watch an existing directory.
func New(root string, recursive bool) (*Watcher, error) {
	w, err := open(root, recursive)
	if err == nil {
		go w.pump()
	}
	return w, err
}

// open is New without the goroutine that reads ahead.
func open(root string, recursive bool) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, connect.Errorf(connect.CodeResourceExhausted, "the system allows no more watchers: %v", err)
	}
	w := &Watcher{
		file: os.NewFile(uintptr(fd), "inotify"), tree: newTree(fd, root, recursive),
		changed: make(chan struct{}, 1), buffer: make([]byte, 16<<10),
	}
	err = w.tree.add("", nil)
	if err == nil && len(w.tree.dirs) == 0 {
		err = connect.Errorf(connect.CodeNotFound, "path not found: %s", root)
	}
	if err != nil {
		_ = w.file.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the watcher; Take then reports that it is closed.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.fail(connect.Errorf(connect.CodeCanceled, "the watcher was closed"))
	w.mu.Unlock()
	// Nobody uses the descriptor after a failure. The close waits for the pump, which takes the lock.
	_ = w.file.Close()
}

// Changed yields a value when Take may have something new.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Take returns what has happened since the last call, up to this moment. An error, returned when the
// events before it are taken, says why there will be no more, or that some were lost.
func (w *Watcher) Take() ([]Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readLocked()
	events := w.queue
	w.queue = nil
	if len(events) > 0 && w.failure != nil {
		w.wake()
		return events, nil
	}
	return events, w.failure
}

// Settle reads what the kernel has reported, so that directories made up to now are watched.
func (w *Watcher) Settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readLocked()
}

// pump reads as the kernel reports, so that its queue does not overflow and new directories are watched
// soon.
func (w *Watcher) pump() {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		err := raw.Read(func(uintptr) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.readLocked() || w.failure != nil
		})
		if err != nil {
			return
		}
		w.mu.Lock()
		over := w.failure != nil
		w.mu.Unlock()
		if over {
			return
		}
	}
}

// readLocked takes everything the kernel has; false if that is nothing.
func (w *Watcher) readLocked() bool {
	some := false
	for w.failure == nil {
		n, err := unix.Read(w.tree.fd, w.buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		some = true
		w.handle(w.buffer[:n])
	}
	if some {
		w.endMove()
		clear(w.tree.announced)
	}
	return some
}

func (w *Watcher) handle(data []byte) {
	for len(data) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(data[0:]))
		mask := binary.NativeEndian.Uint32(data[4:])
		cookie := binary.NativeEndian.Uint32(data[8:])
		length := binary.NativeEndian.Uint32(data[12:])
		end := unix.SizeofInotifyEvent + int(length)
		if end > len(data) {
			return
		}
		name := strings.TrimRight(string(data[unix.SizeofInotifyEvent:end]), "\x00")
		data = data[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.fail(connect.Errorf(connect.CodeResourceExhausted, "too much changed at once: events were lost, watch again"))
			return
		}
		w.handleOne(wd, mask, cookie, name)
	}
}

func (w *Watcher) handleOne(wd int32, mask, cookie uint32, name string) {
	dir, known := w.tree.dirs[wd]
	if !known {
		return
	}
	if mask&unix.IN_MOVED_TO == 0 {
		w.endMove()
	}
	if name == "" {
		w.handleSelf(wd, dir, mask)
		return
	}
	path, isDir := filepath.Join(dir, name), mask&unix.IN_ISDIR != 0
	if strings.HasPrefix(name, HiddenPrefix) || name[0] == '#' && mask&unix.IN_MODIFY != 0 && w.isUnnamed(path) {
		return
	}
	switch {
	case mask&unix.IN_CREATE != 0:
		w.created(path, isDir)
	case mask&unix.IN_MOVED_TO != 0:
		w.movedTo(path, cookie, isDir)
	case mask&unix.IN_MOVED_FROM != 0:
		w.push(Event{path, Rename})
		w.moved = &movedFrom{path: path, cookie: cookie, isDir: isDir}
	case mask&unix.IN_DELETE != 0:
		w.push(Event{path, Remove})
	case mask&unix.IN_MODIFY != 0:
		w.push(Event{path, Write})
	case mask&unix.IN_ATTRIB != 0:
		w.push(Event{path, Chmod})
	}
}

// isUnnamed knows a file that was opened without a name: Linux reports writes to it as "#" and its inode.
func (w *Watcher) isUnnamed(path string) bool {
	_, err := os.Lstat(w.tree.path(path))
	return errors.Is(err, os.ErrNotExist)
}

// handleSelf handles what happens to a watched directory itself. Below the root its parent tells too.
func (w *Watcher) handleSelf(wd int32, dir string, mask uint32) {
	isRoot := dir == ""
	switch {
	case mask&unix.IN_IGNORED != 0:
		w.tree.forget(wd)
	case mask&unix.IN_DELETE_SELF != 0 && isRoot:
		w.push(Event{".", Remove})
		w.fail(connect.Errorf(connect.CodeNotFound, "the watched directory '%s' was removed", w.tree.root))
	case mask&unix.IN_MOVE_SELF != 0 && isRoot:
		w.push(Event{".", Rename})
		w.fail(connect.Errorf(connect.CodeNotFound, "the watched directory '%s' was renamed", w.tree.root))
	case mask&unix.IN_ATTRIB != 0 && isRoot:
		w.push(Event{".", Chmod})
	}
}

func (w *Watcher) created(path string, isDir bool) {
	if w.tree.announced[path] {
		delete(w.tree.announced, path)
		return
	}
	w.push(Event{path, Create})
	if isDir && w.tree.recursive {
		w.addTree(path)
	}
}

// movedTo ends a rename. From outside the tree it brings something new, else the known watches move.
func (w *Watcher) movedTo(path string, cookie uint32, isDir bool) {
	w.push(Event{path, Create})
	from := w.moved
	if from != nil && from.cookie == cookie {
		w.moved = nil
		if isDir {
			w.tree.rename(from.path, path)
		}
		return
	}
	w.endMove()
	if isDir && w.tree.recursive {
		w.addTree(path)
	}
}

// endMove gives up on the second half of a rename: the thing has left the tree.
func (w *Watcher) endMove() {
	if w.moved != nil && w.moved.isDir {
		w.tree.remove(w.moved.path)
	}
	w.moved = nil
}

// addTree watches a directory that has come into the tree, and reports what is in it.
func (w *Watcher) addTree(path string) {
	err := w.tree.add(path, func(relative string, info os.FileInfo) {
		w.push(Event{relative, Create})
		if info.Mode().IsRegular() && info.Size() > 0 {
			w.push(Event{relative, Write})
		}
	})
	if err != nil {
		w.fail(err)
	}
}

// push queues an event. Writes to one file in a row are one event: a large file is written in many.
func (w *Watcher) push(event Event) {
	if last := len(w.queue) - 1; last >= 0 && event.Type == Write && w.queue[last] == event {
		return
	}
	if len(w.queue) >= maxQueued {
		w.fail(connect.Errorf(connect.CodeResourceExhausted, "more than %d events were not fetched: events were lost, watch again", maxQueued))
		return
	}
	w.queue = append(w.queue, event)
	w.wake()
}

func (w *Watcher) fail(err error) {
	if w.failure == nil {
		w.failure = err
		slog.Debug("a watcher ends", "root", w.tree.root, "cause", err.Error())
	}
	w.wake()
}

func (w *Watcher) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
