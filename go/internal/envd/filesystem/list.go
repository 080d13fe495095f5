package filesystem

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"

	"forkyard.dev/forkyard/internal/envd/asuser"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
)

// listing is an answer to ListDir that is written while the tree is walked, so that a directory of a
// million entries costs the names of one directory at a time and not all entries at once.
type listing struct {
	root  string
	depth int
	user  users.User
	names users.Names
	first []string // names in root
}

// newListing checks the path and reads its names; the errors of the call come from here.
func newListing(root string, depth int, user users.User) (*listing, error) {
	l := &listing{root: root, depth: max(depth, 1), user: user, names: users.System.Names()}
	err := asuser.Run(user, func() error {
		info, err := os.Stat(root)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return connect.Errorf(connect.CodeInvalidArgument, "path is not a directory: %s", root)
		}
		l.first, err = sortedNames(root)
		return err
	})
	return l, err
}

// WriteTo writes {"entries":[...]}: each directory's names in order, and below a name its content.
func (l *listing) WriteTo(w io.Writer) (int64, error) {
	out := bufio.NewWriterSize(w, 32<<10)
	err := asuser.Run(l.user, func() error {
		if _, err := out.WriteString(`{"entries":[`); err != nil {
			return err
		}
		count := 0
		if err := l.walk(out, l.root, l.first, l.depth, &count); err != nil {
			return err
		}
		_, err := out.WriteString("]}")
		return err
	})
	if err != nil {
		return 0, err
	}
	return 0, out.Flush()
}

// walk writes the entries of a directory. One that vanishes or may not be read meanwhile is left out.
func (l *listing) walk(out *bufio.Writer, dir string, names []string, depth int, count *int) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		entry, err := Describe(path, l.names)
		if err != nil {
			continue
		}
		encoded, err := json.Marshal(entry)
		if err != nil {
			continue
		}
		if *count > 0 {
			if err := out.WriteByte(','); err != nil {
				return err
			}
		}
		*count++
		if _, err := out.Write(encoded); err != nil {
			return err
		}
		if depth > 1 && entry.Type == TypeDirectory && entry.SymlinkTarget == nil {
			below, err := sortedNames(path)
			if err != nil {
				continue
			}
			if err := l.walk(out, path, below, depth-1, count); err != nil {
				return err
			}
		}
	}
	return nil
}

func sortedNames(dir string) ([]string, error) {
	handle, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = handle.Close() }()
	names, err := handle.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
