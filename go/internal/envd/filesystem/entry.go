// Package filesystem serves the protocol's filesystem service, and describes and changes files with the
// rights of the user of a call.
package filesystem

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
)

// Type is the enum FileType.
type Type string

// The file types of the protocol; anything else has none.
const (
	TypeUnspecified Type = ""
	TypeFile        Type = "FILE_TYPE_FILE"
	TypeDirectory   Type = "FILE_TYPE_DIRECTORY"
)

// Entry is the message EntryInfo.
type Entry struct {
	Name          string            `json:"name"`
	Type          Type              `json:"type,omitempty"`
	Path          string            `json:"path"`
	Size          connect.Int64     `json:"size,omitempty"`
	Mode          uint32            `json:"mode,omitempty"` // permission bits
	Permissions   string            `json:"permissions"`    // as ls shows them, of the link itself for a link
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  string            `json:"modifiedTime"`
	SymlinkTarget *string           `json:"symlinkTarget,omitempty"` // fully resolved
	Metadata      map[string]string `json:"metadata,omitempty"`
}

// Describe makes the entry of a path; of a symbolic link, that of its target. It runs with the rights of
// the calling thread. The error is the operating system's.
func Describe(path string, names users.Names) (*Entry, error) {
	var stat unix.Stat_t
	if err := lstat(path, &stat); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	entry := &Entry{
		Name: filepath.Base(path), Path: path, Permissions: permissions(stat.Mode),
		Owner: names.User(stat.Uid), Group: names.Group(stat.Gid),
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		followLink(path, entry, &stat)
	} else {
		entry.Type, entry.Mode = fileType(stat.Mode), permissionBits(stat.Mode)
	}
	entry.Size = connect.Int64(stat.Size)
	entry.ModifiedTime = time.Unix(stat.Mtim.Unix()).UTC().Format(time.RFC3339Nano)
	if entry.Type != TypeUnspecified {
		entry.Metadata = ReadMetadata(path)
	}
	return entry, nil
}

// followLink fills in type, mode and size of the target. A broken or cyclic link keeps no type, and the
// text of the link as its target.
func followLink(path string, entry *Entry, stat *unix.Stat_t) {
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		var of unix.Stat_t
		if err = unix.Stat(target, &of); err == nil {
			entry.Type, entry.Mode = fileType(of.Mode), permissionBits(of.Mode)
			stat.Size, stat.Mtim = of.Size, of.Mtim
		}
	}
	if err != nil {
		if target, err = os.Readlink(path); err != nil {
			return
		}
	}
	entry.SymlinkTarget = &target
}

func lstat(path string, stat *unix.Stat_t) error {
	for {
		if err := unix.Lstat(path, stat); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func fileType(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDirectory
	default:
		return TypeUnspecified
	}
}

func permissionBits(mode uint32) uint32 { return mode & 0o777 }

// permissions is Go's way to write a mode, which is the protocol's: a letter for the kind, then nine bits.
func permissions(mode uint32) string {
	goMode := os.FileMode(mode & 0o777)
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		goMode |= os.ModeDir
	case unix.S_IFLNK:
		goMode |= os.ModeSymlink
	case unix.S_IFIFO:
		goMode |= os.ModeNamedPipe
	case unix.S_IFSOCK:
		goMode |= os.ModeSocket
	case unix.S_IFBLK:
		goMode |= os.ModeDevice
	case unix.S_IFCHR:
		goMode |= os.ModeDevice | os.ModeCharDevice
	}
	if mode&unix.S_ISUID != 0 {
		goMode |= os.ModeSetuid
	}
	if mode&unix.S_ISGID != 0 {
		goMode |= os.ModeSetgid
	}
	if mode&unix.S_ISVTX != 0 {
		goMode |= os.ModeSticky
	}
	return goMode.String()
}

// metadataPrefix is where the metadata of a file lives among its extended attributes.
const metadataPrefix = "user.e2b."

// ReadMetadata reads the metadata of a file; none if it has none or its filesystem cannot hold any.
func ReadMetadata(path string) map[string]string {
	names := listAttributes(func(buffer []byte) (int, error) { return unix.Listxattr(path, buffer) })
	var metadata map[string]string
	for _, name := range names {
		key, ours := strings.CutPrefix(name, metadataPrefix)
		if !ours {
			continue
		}
		value, err := readAttribute(path, name)
		if err != nil {
			continue
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[key] = value
	}
	return metadata
}

// WriteMetadata makes the metadata of an open file exactly this; it calls the kernel only for what
// changes, since each change is an event for watchers.
func WriteMetadata(file *os.File, metadata map[string]string, isNew bool) error {
	fd := int(file.Fd())
	if !isNew {
		for _, name := range listAttributes(func(buffer []byte) (int, error) { return unix.Flistxattr(fd, buffer) }) {
			key, ours := strings.CutPrefix(name, metadataPrefix)
			if !ours {
				continue
			}
			if _, kept := metadata[key]; !kept {
				if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
					return err
				}
			}
		}
	}
	for key, value := range metadata {
		if err := unix.Fsetxattr(fd, metadataPrefix+key, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

func listAttributes(list func(buffer []byte) (int, error)) []string {
	var small [256]byte
	buffer := small[:]
	for {
		n, err := list(buffer)
		switch {
		case errors.Is(err, unix.ERANGE) && len(buffer) < 1<<16:
			buffer = make([]byte, 1<<16) // what Linux allows at most
		case err != nil || n == 0:
			return nil
		default:
			return strings.Split(strings.TrimRight(string(buffer[:n]), "\x00"), "\x00")
		}
	}
}

func readAttribute(path, name string) (string, error) {
	buffer := make([]byte, 256)
	n, err := unix.Getxattr(path, name, buffer)
	if errors.Is(err, unix.ERANGE) {
		buffer = make([]byte, 1<<16)
		n, err = unix.Getxattr(path, name, buffer)
	}
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}
