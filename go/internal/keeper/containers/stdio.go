package containers

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/keeper/fault"
)

// What a container writes to its stdio goes to files of the host, and anything inside that is root can write there
// without end. Files that grow over maxStdio bytes are cut down to their last keptStdio.
const (
	maxStdio      = 8 << 20
	keptStdio     = 256 << 10
	stdioInterval = time.Second
)

// openStdio opens a file for a container's output; "" is /dev/null. Never a pipe: who holds its other end would wait
// for the sandbox.
func openStdio(path string) (*os.File, error) {
	if path == "" {
		path = os.DevNull
	}
	if err := checkDir("stdio", path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, asFault(err, "opening a file for stdio")
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, err
	}
	if mode := info.Mode(); !mode.IsRegular() && mode&os.ModeCharDevice == 0 {
		file.Close()
		return nil, fault.New(fault.Invalid, "stdio %q is neither a regular file nor a device", path)
	}
	return file, nil
}

func regularPaths(paths ...string) []string {
	var out []string
	for _, path := range paths {
		if path != "" && path != os.DevNull {
			out = append(out, path)
		}
	}
	return out
}

func (m *Manager) trimStdio() {
	for _, c := range m.all() {
		c.mu.Lock()
		paths := c.record.Stdio
		c.mu.Unlock()
		for _, path := range paths {
			if err := trimFile(path, maxStdio, keptStdio); err != nil && !errors.Is(err, os.ErrNotExist) {
				m.Log.Warn("cutting down a container's output", "id", c.id, "path", path, "error", err)
			}
		}
	}
}

// trimFile cuts a regular file that is larger than limit down to its last kept bytes. Its writer appends, and so goes
// on at the new end.
func trimFile(path string, limit, kept int64) error {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() <= limit {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	tail := make([]byte, kept)
	n, err := file.ReadAt(tail, info.Size()-kept)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.WriteAt(tail[:n], 0)
	return err
}
