// Package users finds the users and groups of the sandbox's image, from its /etc/passwd and /etc/group
// and without libc, so that it works in any image, an empty one included.
package users

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// User is a Linux user as a process would run as it.
type User struct {
	Name   string // login name; the number itself for a uid that has no entry
	UID    uint32
	GID    uint32
	Home   string   // never empty
	Groups []uint32 // supplementary groups, without GID
}

// UnknownError says that a name is no user of this image.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string { return fmt.Sprintf("invalid username: '%s'", e.Name) }

// Database reads users from passwd and group files. They are read afresh for every lookup: a command may
// have added a user a moment before.
type Database struct{ PasswdPath, GroupPath string }

// System is the database of the running system.
var System = Database{PasswdPath: "/etc/passwd", GroupPath: "/etc/group"}

// maxLine bounds a line of either file; a group with more members than fit is cut there.
const maxLine = 1 << 20

// Lookup finds a user by "name", "uid", "name:group" or "uid:gid". A uid without an entry is a user with
// group 0 and home "/", as container runtimes have it. Root exists even where there is no passwd file.
func (db Database) Lookup(spec string) (User, error) {
	name, groupSpec, hasGroup := strings.Cut(spec, ":")
	user, err := db.find(name)
	if err != nil {
		return User{}, err
	}
	if hasGroup && groupSpec != "" {
		gid, err := db.findGroup(groupSpec)
		if err != nil {
			return User{}, err
		}
		user.GID = gid
	}
	user.Groups = db.supplementary(user)
	return user, nil
}

func (db Database) find(name string) (User, error) {
	uid, numeric := parseID(name)
	var byID *User
	var byName *User
	db.eachPasswd(func(entry User) bool {
		if entry.Name == name {
			byName = &entry
			return false
		}
		if numeric && entry.UID == uid && byID == nil {
			byID = &entry
		}
		return true
	})
	switch {
	case byName != nil:
		return *byName, nil
	case byID != nil:
		return *byID, nil
	case numeric:
		return User{Name: name, UID: uid, GID: 0, Home: "/"}, nil
	case name == "root":
		return User{Name: "root", Home: "/root"}, nil
	default:
		return User{}, &UnknownError{Name: name}
	}
}

func (db Database) findGroup(spec string) (uint32, error) {
	gid, numeric := parseID(spec)
	found := false
	eachLine(db.GroupPath, func(fields []string) bool {
		if len(fields) >= 3 && fields[0] == spec {
			if id, ok := parseID(fields[2]); ok {
				gid, found = id, true
				return false
			}
		}
		return true
	})
	if !found && !numeric {
		return 0, &UnknownError{Name: spec}
	}
	return gid, nil
}

func (db Database) supplementary(user User) []uint32 {
	var groups []uint32
	eachLine(db.GroupPath, func(fields []string) bool {
		if len(fields) < 4 {
			return true
		}
		for member := range strings.SplitSeq(fields[3], ",") {
			if member != user.Name {
				continue
			}
			if gid, ok := parseID(fields[2]); ok && gid != user.GID {
				groups = append(groups, gid)
			}
			break
		}
		return true
	})
	return groups
}

// Names maps ids to names, for listings; an id without an entry is its own number.
type Names struct{ users, groups map[uint32]string }

// Names reads both files once.
func (db Database) Names() Names {
	names := Names{users: map[uint32]string{0: "root"}, groups: map[uint32]string{0: "root"}}
	seen := map[uint32]bool{}
	db.eachPasswd(func(entry User) bool {
		if !seen[entry.UID] {
			names.users[entry.UID], seen[entry.UID] = entry.Name, true
		}
		return true
	})
	seen = map[uint32]bool{}
	eachLine(db.GroupPath, func(fields []string) bool {
		if len(fields) >= 3 {
			if gid, ok := parseID(fields[2]); ok && !seen[gid] {
				names.groups[gid], seen[gid] = fields[0], true
			}
		}
		return true
	})
	return names
}

// User is the name of a uid.
func (n Names) User(uid uint32) string { return nameOrNumber(n.users, uid) }

// Group is the name of a gid.
func (n Names) Group(gid uint32) string { return nameOrNumber(n.groups, gid) }

func nameOrNumber(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

func (db Database) eachPasswd(visit func(User) bool) {
	eachLine(db.PasswdPath, func(fields []string) bool {
		if len(fields) < 6 || fields[0] == "" {
			return true
		}
		uid, uidOK := parseID(fields[2])
		gid, gidOK := parseID(fields[3])
		if !uidOK || !gidOK {
			return true
		}
		home := fields[5]
		if !strings.HasPrefix(home, "/") {
			home = "/"
		}
		return visit(User{Name: fields[0], UID: uid, GID: gid, Home: home})
	})
}

// eachLine calls visit with the fields of each line until it answers false; a missing file has no lines.
func eachLine(path string, visit func(fields []string) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if !visit(strings.Split(line, ":")) {
			return
		}
	}
}

// maxID leaves out -1, which setresuid takes as "no change".
const maxID = 1<<32 - 2

func parseID(text string) (uint32, bool) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err == nil && id <= maxID
}
