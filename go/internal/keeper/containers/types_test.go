package containers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"forkyard.dev/forkyard/internal/keeper/cgroups"
)

func TestIDs(t *testing.T) {
	for id, ok := range map[string]bool{
		"i0123456789abcdefghij": true, "empty-x1": true, strings.Repeat("a", 64): true, "": false, "-a": false,
		"a/b": false, "..": false, ".lock": false, strings.Repeat("a", 65): false, "a.b": false, "a b": false, "ä": false,
	} {
		if (checkID(id) == nil) != ok {
			t.Errorf("%q: accepted is %v", id, !ok)
		}
	}
}

func TestSpecsThatAreRefused(t *testing.T) {
	good := `{"process": {"args": ["/x"]}, "root": {"path": "rootfs"}}`
	if _, err := parseSpec(json.RawMessage(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		``, `[]`, `{}`, `{"process": {"args": ["/x"]}}`,
		`{"process": {"args": ["/x"], "terminal": true}, "root": {"path": "rootfs"}}`,
		`{"process": {"args": ["/x"]}, "root": {"path": "rootfs"}, "hooks": {}}`,
		`{"process": {"args": ["/x"]}, "root": {"path": "rootfs"}, "annotations": {"dev.gvisor.flag.overlay2": "none"}}`,
		`{"process": {"args": ["/x"]}, "root": {"path": "rootfs"}, "annotations": {"dev.gvisor.bundle.x": "true"}}`,
	} {
		if _, err := parseSpec(json.RawMessage(bad)); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
}

func TestLimits(t *testing.T) {
	quota, period, shares, memory := int64(150_000), uint64(100_000), uint64(512), int64(1<<30)
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: 99},
	}}}
	want := cgroups.Limits{MemoryBytes: 2 << 30, CPUShares: 512, CPUQuotaUS: 150_000, CPUPeriodUS: 100_000, Pids: 99}
	if got := limitsOf(spec, 2<<30); got != want {
		t.Errorf("got %+v", got)
	}
	if specMemory(spec) != 1<<30 || specMemory(&specs.Spec{}) != 0 {
		t.Error("the machine's memory is not the spec's")
	}
	for want, host := range map[int]int{2: 8, 1: 1} {
		if got := specCPUs(spec, host); got != want {
			t.Errorf("1.5 processors of %d are %d, want %d", host, got, want)
		}
	}
	quota = 700_000
	if got := specCPUs(spec, 64); got != 7 {
		t.Errorf("7 processors are %d", got)
	}
	if got := specCPUs(&specs.Spec{}, 8); got != 0 {
		t.Errorf("no quota is %d", got)
	}
}

func TestWatchIsChecked(t *testing.T) {
	if err := (&Watch{}).validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Watch{
		{HealthURL: "http://x/"}, {MemoryEventBytes: []int64{0}}, {MemoryEventBytes: make([]int64, maxMemoryMarks+1)},
	} {
		if bad.validate() == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
}

func TestTrimFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	writer, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	write := func(text string) {
		t.Helper()
		if _, err := writer.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	content := func() string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write(strings.Repeat("a", 100))
	if err := trimFile(path, 100, 10); err != nil || len(content()) != 100 {
		t.Errorf("a file at the limit: %d bytes, %v", len(content()), err)
	}
	write("end")
	if err := trimFile(path, 100, 10); err != nil || content() != "aaaaaaaend" {
		t.Errorf("a file over the limit: %q, %v", content(), err)
	}
	write("more")
	if content() != "aaaaaaaendmore" {
		t.Errorf("what is written afterwards: %q", content())
	}
	link := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := trimFile(link, 1, 1); err != nil || content() != "aaaaaaaendmore" {
		t.Errorf("a link was followed: %q, %v", content(), err)
	}
	if _, err := openStdio(link); err == nil {
		t.Error("a link was opened for output")
	}
}

func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := newContainer("a", dir)
	if err := c.setPhase(phaseRunning); err != nil {
		t.Fatal(err)
	}
	if r, err := readRecord(dir); err != nil || r.Phase != phaseRunning || r.ID != "a" {
		t.Errorf("read %+v, %v", r, err)
	}
	other := filepath.Join(filepath.Dir(dir), "b")
	if err := os.Rename(dir, other); err != nil {
		t.Fatal(err)
	}
	if _, err := readRecord(other); err == nil {
		t.Error("a record of another container was taken")
	}
}
