package users

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func database(t *testing.T, passwd, group string) Database {
	t.Helper()
	dir := t.TempDir()
	db := Database{PasswdPath: filepath.Join(dir, "passwd"), GroupPath: filepath.Join(dir, "group")}
	for path, content := range map[string]string{db.PasswdPath: passwd, db.GroupPath: group} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

const (
	passwd = `root:x:0:0:root:/root:/bin/bash
# a comment
broken:x:zero:0::/:/bin/sh
short:x:5
user:x:1000:1001:,,,:/home/user:/bin/bash
twin:x:1000:1001::/home/twin:/bin/sh
relative:x:1002:1002::home/relative:/bin/sh
1003:x:2000:2000::/home/digits:/bin/sh
`
	group = `root:x:0:
sudo:x:27:other,user
user:x:1001:user
docker:x:900:user,user
bad:x:nine:user
empty:x:901
`
)

func TestLookup(t *testing.T) {
	db := database(t, passwd, group)
	for spec, want := range map[string]User{
		"root":      {Name: "root", UID: 0, GID: 0, Home: "/root"},
		"0":         {Name: "root", UID: 0, GID: 0, Home: "/root"},
		"user":      {Name: "user", UID: 1000, GID: 1001, Home: "/home/user", Groups: []uint32{27, 900}},
		"1000":      {Name: "user", UID: 1000, GID: 1001, Home: "/home/user", Groups: []uint32{27, 900}},
		"user:sudo": {Name: "user", UID: 1000, GID: 27, Home: "/home/user", Groups: []uint32{1001, 900}},
		"relative":  {Name: "relative", UID: 1002, GID: 1002, Home: "/"},
		"1003":      {Name: "1003", UID: 2000, GID: 2000, Home: "/home/digits"},
		"4242":      {Name: "4242", UID: 4242, GID: 0, Home: "/"},
		"4242:4343": {Name: "4242", UID: 4242, GID: 4343, Home: "/"},
		"4242:user": {Name: "4242", UID: 4242, GID: 1001, Home: "/"},
	} {
		got, err := db.Lookup(spec)
		slices.Sort(got.Groups)
		slices.Sort(want.Groups)
		got.Groups = slices.Compact(got.Groups)
		if err != nil || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID || got.Home != want.Home || !slices.Equal(got.Groups, want.Groups) {
			t.Fatalf("%s: %+v %v", spec, got, err)
		}
	}
	for _, spec := range []string{"", "nobody", "broken", "short", "-1", "4294967295", "4294967296", "user:nogroup", "# a comment", "root\x00"} {
		_, err := db.Lookup(spec)
		var unknown *UnknownError
		if !errors.As(err, &unknown) {
			t.Fatalf("%q: %v", spec, err)
		}
	}
}

func TestAnImageWithoutFiles(t *testing.T) {
	db := Database{PasswdPath: "/no/passwd", GroupPath: "/no/group"}
	if root, err := db.Lookup("root"); err != nil || root.UID != 0 || root.Home != "/root" {
		t.Fatalf("%+v %v", root, err)
	}
	if _, err := db.Lookup("user"); err == nil {
		t.Fatal("a user out of nothing")
	}
	if names := db.Names(); names.User(0) != "root" || names.User(7) != "7" || names.Group(8) != "8" {
		t.Fatalf("%+v", names)
	}
}

func TestNamesTakeTheFirstEntry(t *testing.T) {
	names := database(t, passwd, group).Names()
	if names.User(1000) != "user" || names.Group(1001) != "user" || names.User(77) != "77" {
		t.Fatalf("%+v", names)
	}
}

func TestAVeryLongLineEndsTheFileThere(t *testing.T) {
	db := database(t, "root:x:0:0::/root:/bin/sh\n"+strings.Repeat("x", 2*maxLine)+"\nuser:x:1:1::/home:/bin/sh\n", "")
	if _, err := db.Lookup("root"); err != nil {
		t.Fatal(err)
	}
}

func FuzzLookup(f *testing.F) {
	f.Add(passwd, group, "user:sudo")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		user, err := database(t, passwd, group).Lookup(spec)
		if err == nil && !strings.HasPrefix(user.Home, "/") {
			t.Fatalf("home %q", user.Home)
		}
	})
}
