package files

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/watch"
)

// spoolMemory is the size up to which a body waits in memory.
const spoolMemory = 256 << 10

// copyBuffer is also the size up to which a new file is written at once, as one event for watchers.
const copyBuffer = 256 << 10

var copyBuffers = sync.Pool{New: func() any {
	buffer := make([]byte, copyBuffer)
	return &buffer
}}

// bodyError marks what went wrong on the client's side of a copy.
type bodyError struct{ cause error }

func (e *bodyError) Error() string { return "the upload could not be read: " + e.cause.Error() }
func (e *bodyError) Unwrap() error { return e.cause }

// copyBody copies all of body in large pieces.
func copyBody(dst io.Writer, body io.Reader) error {
	buffer, _ := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buffer)
	for {
		n, readErr := io.ReadFull(body, *buffer)
		ended := errors.Is(readErr, io.EOF) || errors.Is(readErr, errShort)
		if n > 0 && (readErr == nil || ended) {
			if _, err := dst.Write((*buffer)[:n]); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
		if readErr != nil {
			return &bodyError{readErr}
		}
	}
}

// errShort is how io.ReadFull says that the reader ended with less than was asked for. A body that was
// cut off reports the very same error itself, so bodies are wrapped in honestReader.
var errShort = io.ErrUnexpectedEOF

// errCut replaces io.ErrUnexpectedEOF of a body that ended before its time.
var errCut = errors.New("the connection was closed before the end of the body")

type honestReader struct{ body io.Reader }

func (r honestReader) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCut
	}
	return n, err
}

// spool keeps a whole body until it is put in place.
type spool struct {
	memory []byte
	file   *os.File // nil while the body fits into memory; has no name
	size   int64
}

// newSpool reads the body; one too large for memory goes to an unnamed file beside the target, so that it
// takes its space from the same filesystem.
func (h *Handler) newSpool(body io.Reader, dir string) (*spool, error) {
	var head bytes.Buffer
	if _, err := io.CopyN(&head, body, spoolMemory+1); err != nil && !errors.Is(err, io.EOF) {
		return nil, &bodyError{err}
	}
	if head.Len() <= spoolMemory {
		return &spool{memory: head.Bytes(), size: int64(head.Len())}, nil
	}
	file, err := h.unnamedFile(dir)
	if err != nil {
		return nil, err
	}
	s := &spool{file: file}
	err = copyBody(file, io.MultiReader(&head, body))
	if err == nil {
		s.size, err = file.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return s, nil
}

// section reads a part of the body.
func (s *spool) section(offset, size int64) io.Reader {
	if s.file == nil {
		return bytes.NewReader(s.memory[offset : offset+size])
	}
	return io.NewSectionReader(s.file, offset, size)
}

func (s *spool) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}

// unnamedFile makes a file without a name on the filesystem of dir: in a directory of our own if that is on
// the same one, since even of an unnamed file those who watch its directory hear something.
func (h *Handler) unnamedFile(dir string) (*os.File, error) {
	if sameDevice(h.SpoolDir, dir) {
		dir = h.SpoolDir
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), dir), nil
	}
	// gVisor knows no unnamed files: make one with a name, and take that away.
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails since Go 1.24
	name := filepath.Join(dir, watch.HiddenPrefix+hex.EncodeToString(id[:]))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(name); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func sameDevice(a, b string) bool {
	var statA, statB unix.Stat_t
	return a != "" && unix.Stat(a, &statA) == nil && unix.Stat(b, &statB) == nil && statA.Dev == statB.Dev
}

// pathLocks lets one upload at a time write to a path.
type pathLocks struct {
	mu   sync.Mutex
	held map[string]*pathLock
}

type pathLock struct {
	sync.Mutex
	users int
}

// lock waits for the path and returns what gives it back.
func (l *pathLocks) lock(path string) func() {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*pathLock{}
	}
	held := l.held[path]
	if held == nil {
		held = &pathLock{}
		l.held[path] = held
	}
	held.users++
	l.mu.Unlock()
	held.Lock()
	return func() {
		held.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if held.users--; held.users == 0 {
			delete(l.held, path)
		}
	}
}
