// Package asuser runs filesystem work with the rights of a user of the sandbox, so that the kernel and
// not envd decides what that user may touch.
package asuser

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/users"
)

// keep is the "leave it as it is" argument of setresuid and setresgid.
const keep = ^uintptr(0)

// Run calls work on a thread whose effective uid, gid and groups are the user's. Only files opened inside
// work are checked against the user; those it returns may be used outside. work must not start goroutines
// that touch files. For root, or where envd itself is not root, it just calls work.
//
// The system calls are raw because the ones of package syscall change all threads. setfsuid would do on
// Linux, but gVisor does not have it.
func Run(user users.User, work func() error) error {
	if os.Geteuid() != 0 || user.UID == 0 {
		return work()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err, restored := switched(user, work)
		if restored {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine, and nothing runs with the wrong rights
		result <- err
	}()
	return <-result
}

// switched runs work as the user and says whether the thread is root's again.
func switched(user users.User, work func() error) (err error, restored bool) {
	before, err := unix.Getgroups()
	if err != nil {
		return fmt.Errorf("reading the groups of envd: %w", err), true
	}
	ownGID := uint32(unix.Getegid())
	own := make([]uint32, len(before))
	for i, gid := range before {
		own[i] = uint32(gid)
	}
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("internal fault: %v", problem)
		}
		restored = change(0, ownGID, own) == nil
	}()
	groups := append([]uint32{user.GID}, user.Groups...)
	if err := setGroups(groups); err != nil {
		return fmt.Errorf("taking the groups of '%s': %w", user.Name, err), false
	}
	if err := setID(unix.SYS_SETRESGID, user.GID); err != nil {
		return fmt.Errorf("taking the group of '%s': %w", user.Name, err), false
	}
	if err := setID(unix.SYS_SETRESUID, user.UID); err != nil {
		return fmt.Errorf("becoming '%s': %w", user.Name, err), false
	}
	return work(), false
}

// change goes back: the uid first, since only root may set the rest.
func change(uid, gid uint32, groups []uint32) error {
	if err := setID(unix.SYS_SETRESUID, uid); err != nil {
		return err
	}
	if err := setID(unix.SYS_SETRESGID, gid); err != nil {
		return err
	}
	return setGroups(groups)
}

func setID(call uintptr, id uint32) error {
	if _, _, errno := unix.RawSyscall(call, keep, uintptr(id), keep); errno != 0 {
		return errno
	}
	return nil
}

func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	return nil
}
