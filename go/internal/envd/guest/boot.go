// Package guest makes a fresh container a usable system, and gives a sandbox its identity: at its start,
// and again after each restore and fork.
package guest

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/procfs"
)

// mount is a filesystem that a usable system has.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
	probe                string // exists when there is no need for it; empty: see mounted
}

// shmSize stands for half of the memory, which is known only when /proc is there.
const (
	shmSize     = "HALF"
	fallbackShm = 64 << 20
)

var mounts = []mount{
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", "/proc/self/stat"},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "", "/sys/kernel"},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755", "/dev/null"},
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666,gid=5", "/dev/pts/ptmx"},
	// The size is stated since programs ask for it; without one gVisor shows the memory of the host.
	{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=" + shmSize, ""},
}

var links = [][2]string{
	{"/proc/self/fd", "/dev/fd"},
	{"/proc/self/fd/0", "/dev/stdin"},
	{"/proc/self/fd/1", "/dev/stdout"},
	{"/proc/self/fd/2", "/dev/stderr"},
	{"pts/ptmx", "/dev/ptmx"},
}

// defaultNameservers are used where the image and the runtime bring none.
const defaultNameservers = "nameserver 8.8.8.8\nnameserver 1.1.1.1\n"

// Boot is what PID 1 does first. Nothing in it is fatal: an odd image shall start with what it has.
func Boot() {
	for _, m := range mounts {
		if m.needed() {
			complain("mounting "+m.target, m.mount())
		}
	}
	for _, link := range links {
		if _, err := os.Lstat(link[1]); errors.Is(err, os.ErrNotExist) {
			complain("linking "+link[1], os.Symlink(link[0], link[1]))
		}
	}
	complain("setting the mode of /dev/shm", os.Chmod("/dev/shm", 0o777|os.ModeSticky))
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			complain("making "+dir, os.MkdirAll(dir, 0o755))
			complain("setting the mode of "+dir, os.Chmod(dir, 0o777|os.ModeSticky))
		}
	}
	if name, err := os.Hostname(); err == nil && validHostname.MatchString(name) {
		complain("writing /etc/hosts", writeFile("/etc/hosts", hostsWith("/etc/hosts", name), 0o644))
	}
	if data, err := os.ReadFile("/etc/resolv.conf"); err != nil || len(strings.TrimSpace(string(data))) == 0 {
		complain("writing /etc/resolv.conf", writeFile("/etc/resolv.conf", defaultNameservers, 0o644))
	}
}

func (m mount) needed() bool {
	if m.probe == "" {
		return !mounted(m.target)
	}
	_, err := os.Stat(m.probe)
	return err != nil
}

// mounted compares the filesystem of a directory with its parent's.
func mounted(target string) bool {
	var own, parent unix.Stat_t
	if unix.Stat(target, &own) != nil || unix.Stat(filepath.Dir(target), &parent) != nil {
		return false
	}
	return own.Dev != parent.Dev
}

func (m mount) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	return unix.Mount(m.source, m.target, m.kind, m.flags, strings.ReplaceAll(m.data, shmSize, strconv.FormatInt(halfOfMemory(), 10)))
}

// halfOfMemory is in bytes; it is what Linux gives a tmpfs by default.
func halfOfMemory() int64 {
	reader, err := procfs.NewMemoryReader()
	if err != nil {
		return fallbackShm
	}
	defer func() { _ = reader.Close() }()
	memory, err := reader.Read()
	if err != nil || memory.Total == 0 {
		return fallbackShm
	}
	return memory.Total / 2
}

func complain(what string, err error) {
	if err != nil {
		slog.Warn(what+" failed", "cause", err.Error())
	}
}

// writeFile replaces the content of a file in place, since it may be a mount, and makes it and its
// directory if they are missing.
func writeFile(path, content string, mode os.FileMode) error {
	if present, err := os.ReadFile(path); err == nil && string(present) == content {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), mode)
}
