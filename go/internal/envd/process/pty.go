package process

import (
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Size is the size of a terminal in characters.
type Size struct{ Cols, Rows uint32 }

// defaultSize is used where the caller names none: programs break on 0 columns.
var defaultSize = Size{Cols: 80, Rows: 24}

func (s Size) orDefault() Size {
	if s.Cols == 0 {
		s.Cols = defaultSize.Cols
	}
	if s.Rows == 0 {
		s.Rows = defaultSize.Rows
	}
	return s
}

func (s Size) valid() bool { return s.Cols <= math.MaxUint16 && s.Rows <= math.MaxUint16 }

// openPTY makes a terminal that belongs to uid, and returns our end, and the end for the process.
func openPTY(size Size, uid uint32) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening /dev/ptmx: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("numbering the terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlocking the terminal: %w", err)
	}
	name := "/dev/pts/" + strconv.Itoa(number)
	if os.Geteuid() == 0 {
		// The gid stays: it is the tty group where devpts was mounted so.
		if err := os.Chown(name, int(uid), -1); err != nil {
			return nil, nil, fmt.Errorf("giving the terminal to its user: %w", err)
		}
	}
	slaveFD, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", name, err)
	}
	if err := setSize(slaveFD, size); err != nil {
		_ = unix.Close(slaveFD)
		return nil, nil, fmt.Errorf("sizing the terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), os.NewFile(uintptr(slaveFD), name), nil
}

// setSize also makes the kernel send SIGWINCH to the foreground process group.
func setSize(fd int, size Size) error {
	size = size.orDefault()
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)})
}
