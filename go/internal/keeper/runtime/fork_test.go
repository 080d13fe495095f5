package runtime

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseCommand(t *testing.T) {
	for _, c := range []struct {
		args         []string
		kind, bundle string
	}{
		{[]string{"runsc-sandbox", "--root=/x", "boot", "--bundle=/b/a", "s"}, KindSandbox, "/b/a"},
		{[]string{"runsc-gofer", "--root=/x", "gofer", "--bundle", "/b/a/"}, KindGofer, "/b/a"},
		{[]string{"runsc", "--version"}, "", "."},
	} {
		if kind, bundle := parseCommand(c.args); kind != c.kind || bundle != c.bundle {
			t.Errorf("%v: %q, %q", c.args, kind, bundle)
		}
	}
}

func TestSetResources(t *testing.T) {
	cmd := &exec.Cmd{Args: []string{"runsc-sandbox", "boot", "--total-memory", "8000", "--x", "id"}}
	(&plan{memoryBytes: 512, cpus: 2}).setResources(cmd)
	want := []string{"runsc-sandbox", "boot", "--total-memory", "512", "--cpu-num", "2", "--x", "id"}
	if !slices.Equal(cmd.Args, want) {
		t.Errorf("got %v", cmd.Args)
	}
	cmd = &exec.Cmd{Args: []string{"boot", "--total-memory", "8000", "id"}}
	(&plan{memoryBytes: 9000}).setResources(cmd) // more than the host has
	if !slices.Equal(cmd.Args, []string{"boot", "--total-memory", "8000", "id"}) {
		t.Errorf("got %v", cmd.Args)
	}
}

func TestSetStdio(t *testing.T) {
	files := make([]*os.File, 6)
	for i := range files {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		defer write.Close()
		files[i] = read
	}
	saved, savedNull := standIns, nullFile
	defer func() { standIns, nullFile = saved, savedNull }()
	standIns, nullFile = [3]*os.File{files[0], files[1], files[2]}, files[3]
	cmd := &exec.Cmd{ExtraFiles: []*os.File{files[0], nil, files[2], files[1]}}
	(&plan{stdout: files[4], stderr: files[5]}).setStdio(cmd)
	if !slices.Equal(cmd.ExtraFiles, []*os.File{files[3], nil, files[5], files[4]}) {
		t.Errorf("the container's stdio was not put in place of the keeper's: %v", cmd.ExtraFiles)
	}
}

func TestUnexpectedForkIsRefused(t *testing.T) {
	if _, err := beforeStart(&exec.Cmd{Args: []string{"boot", "--bundle=/nobody/knows"}}); err == nil {
		t.Error("a process that nobody asked for was started")
	}
	forget, err := expectFork("/b", &plan{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := expectFork("/b", &plan{}); err == nil {
		t.Error("two creations in one directory")
	}
	forget()
	if forget, err = expectFork("/b", &plan{}); err != nil {
		t.Error(err)
	}
	forget()
}

func TestIsNoSpace(t *testing.T) {
	if !IsNoSpace(&os.PathError{Err: unix.ENOSPC}) {
		t.Error("a full disk was not recognised")
	}
	if IsNoSpace(os.ErrNotExist) {
		t.Error("a missing file was taken for a full disk")
	}
}
