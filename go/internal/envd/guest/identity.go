package guest

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/connect"
)

// Identity is what tells one sandbox from another, as POST /init brings it. An empty field changes nothing.
type Identity struct {
	SandboxID  string
	TemplateID string
	Hostname   string
	BootID     string
	MachineID  string
	Timestamp  string // RFC3339 with nanoseconds: the time at the host
}

var (
	validHostname  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)
	validBootID    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	validMachineID = regexp.MustCompile(`^[0-9a-f]{32}$`)
	validName      = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,256}$`)
)

// Validate checks the fields before anything is changed. The error has code invalid_argument.
func (i Identity) Validate() error {
	for _, field := range []struct {
		name, value string
		valid       *regexp.Regexp
	}{
		{"sandboxId", i.SandboxID, validName}, {"templateId", i.TemplateID, validName},
		{"hostname", i.Hostname, validHostname}, {"bootId", i.BootID, validBootID}, {"machineId", i.MachineID, validMachineID},
	} {
		if field.value != "" && !field.valid.MatchString(field.value) {
			return connect.Errorf(connect.CodeInvalidArgument, "%s is not valid: %q", field.name, field.value)
		}
	}
	if i.Timestamp != "" {
		if _, err := time.Parse(time.RFC3339Nano, i.Timestamp); err != nil {
			return connect.Errorf(connect.CodeInvalidArgument, "timestamp is not valid: %q", i.Timestamp)
		}
	}
	return nil
}

// System is the place an identity is put.
type System struct {
	// Root is "/", or another directory for tests, which then leave the kernel's own state alone.
	Root string
}

func (s System) real() bool { return s.Root == "/" }

func (s System) path(name string) string { return filepath.Join(s.Root, name) }

// RunDir is where the sandbox finds facts about itself.
const RunDir = "/run/e2b"

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// Apply puts an identity in place. What does not work is logged: a sandbox with a wrong host name is
// better than none.
func (s System) Apply(i Identity) {
	if i.Timestamp != "" && s.real() {
		setClock(i.Timestamp)
	}
	complain("mixing entropy", s.stirEntropy(i))
	complain("writing "+RunDir, s.writeRunDir(i))
	if i.Hostname != "" {
		complain("setting the host name", s.setHostname(i.Hostname))
	}
	if i.MachineID != "" {
		complain("writing /etc/machine-id", writeFile(s.path("/etc/machine-id"), i.MachineID+"\n", 0o444))
	}
	if i.BootID != "" {
		complain("setting the boot id", s.setBootID(i.BootID))
	}
}

// setClock sets the clock if it is off by more than a second. gVisor has no clock of its own and refuses.
func setClock(timestamp string) {
	at, err := time.Parse(time.RFC3339Nano, timestamp)
	if err != nil {
		return
	}
	if off := time.Since(at); off > -time.Second && off < time.Second {
		return
	}
	spec := unix.NsecToTimespec(at.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &spec); err != nil {
		slog.Debug("the clock cannot be set", "cause", err.Error())
	}
}

// stirEntropy mixes what is new about this sandbox into the kernel's pool, so that two that were restored
// from one memory do not go on alike.
func (s System) stirEntropy(i Identity) error {
	if !s.real() {
		return nil
	}
	var fresh [32]byte
	_, _ = rand.Read(fresh[:]) // never fails since Go 1.24
	text := strings.Join([]string{i.SandboxID, i.BootID, i.MachineID, i.Timestamp, time.Now().String()}, "\x00")
	sum := sha256.Sum256(append(fresh[:], text...))
	return os.WriteFile("/dev/urandom", sum[:], 0)
}

func (s System) writeRunDir(i Identity) error {
	dir := s.path(RunDir)
	return errors.Join(
		writeFile(filepath.Join(dir, ".E2B_SANDBOX"), "true", 0o444),
		s.writeFact(".E2B_SANDBOX_ID", i.SandboxID),
		s.writeFact(".E2B_TEMPLATE_ID", i.TemplateID),
	)
}

func (s System) writeFact(name, value string) error {
	if value == "" {
		return nil
	}
	return writeFile(filepath.Join(s.path(RunDir), name), value, 0o444)
}

// hostsMark ends the line of /etc/hosts that is ours to replace.
const hostsMark = "# sandbox"

func (s System) setHostname(name string) error {
	var kernel error
	if s.real() {
		kernel = unix.Sethostname([]byte(name))
	}
	return errors.Join(kernel,
		writeFile(s.path("/etc/hostname"), name+"\n", 0o644),
		writeFile(s.path("/etc/hosts"), hostsWith(s.path("/etc/hosts"), name), 0o644))
}

// hostsWith is the present hosts file with the line for the host name, which sudo looks up.
func hostsWith(path, name string) string {
	present, _ := os.ReadFile(path)
	var kept strings.Builder
	for line := range strings.Lines(string(present)) {
		if !strings.HasSuffix(strings.TrimSpace(line), hostsMark) {
			kept.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	if !strings.Contains(kept.String(), "localhost") {
		kept.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	}
	return kept.String() + "127.0.1.1\t" + name + " " + hostsMark + "\n"
}

// setBootID writes a file that lies over the kernel's. It is written in place: the mount shows its inode,
// and all values are of one length, so no reader sees half of one.
func (s System) setBootID(id string) error {
	path := filepath.Join(s.path(RunDir), "boot_id")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o444)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte(id+"\n"), 0)
	if err = errors.Join(err, file.Close()); err != nil || !s.real() {
		return err
	}
	if seen, err := os.ReadFile(bootIDPath); err == nil && strings.TrimSpace(string(seen)) == id {
		return nil
	}
	return unix.Mount(path, bootIDPath, "", unix.MS_BIND, "")
}
