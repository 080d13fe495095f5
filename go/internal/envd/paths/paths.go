// Package paths turns the paths of requests into absolute ones.
package paths

import (
	"path/filepath"
	"strings"

	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/users"
)

// Resolve makes a path absolute: as it is, below the home for ~ and ~/x, else below the default working
// directory, or the home if there is none. An empty path is that directory itself. The error has code
// invalid_argument.
func Resolve(path string, user users.User, workdir string) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", connect.Errorf(connect.CodeInvalidArgument, "the path holds a zero byte")
	}
	base := user.Home
	if workdir != "" {
		base = workdir
		if !filepath.IsAbs(base) {
			base = filepath.Join(user.Home, base)
		}
	}
	switch {
	case path == "":
		return base, nil
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	case path == "~", strings.HasPrefix(path, "~/"):
		return filepath.Join(user.Home, path[1:]), nil
	case path[0] == '~':
		return "", connect.Errorf(connect.CodeInvalidArgument, "the path '%s' names the home of another user, which is not supported", path)
	default:
		return filepath.Join(base, path), nil
	}
}
