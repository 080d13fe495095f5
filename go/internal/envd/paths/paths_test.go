package paths

import (
	"testing"

	"forkyard.dev/forkyard/internal/envd/users"
)

func TestResolve(t *testing.T) {
	user := users.User{Home: "/home/user"}
	for _, test := range []struct{ path, workdir, want string }{
		{"", "", "/home/user"}, {"", "/srv", "/srv"}, {".", "", "/home/user"}, {"a/b", "", "/home/user/a/b"}, {"a/b", "/srv", "/srv/a/b"},
		{"a", "app", "/home/user/app/a"}, {"~", "/srv", "/home/user"}, {"~/x", "/srv", "/home/user/x"}, {"/", "", "/"}, {"/a//b/../c/", "", "/a/c"},
		{"../../../etc", "", "/etc"}, {"/../..", "", "/"}, {"a~", "", "/home/user/a~"}, {"~/../x", "", "/home/x"},
	} {
		if got, err := Resolve(test.path, user, test.workdir); err != nil || got != test.want {
			t.Fatalf("%+v: %q %v", test, got, err)
		}
	}
	for _, bad := range []string{"~root", "~root/x", "~~", "a\x00b"} {
		if got, err := Resolve(bad, user, ""); err == nil {
			t.Fatalf("%q: %q", bad, got)
		}
	}
}
