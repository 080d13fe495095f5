package procfs

import (
	"fmt"
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c) S 7 42 41 34816 42 4194560 1 2 3 4 100 23 0 0 20 0 1 0 123456 22000000 512 18446744073709551615"
	got, ok := parseStat(42, []byte(line))
	want := Process{PID: 42, PPID: 7, PGID: 42, SID: 41, State: 'S', StartTime: 123456, CPUTicks: 123, RSSBytes: 512 * pageSize, Comm: "a) b (c"}
	if !ok || got != want {
		t.Fatalf("%+v", got)
	}
	for _, bad := range []string{"", "42", "42 (x", "42 (x) S 1", ")(", "42 x) S"} {
		if _, ok := parseStat(42, []byte(bad)); ok {
			t.Fatalf("%q was taken", bad)
		}
	}
}

func TestThisProcess(t *testing.T) {
	self, ok := Read(os.Getpid())
	if !ok || self.PPID != os.Getppid() || self.RSSBytes == 0 || self.Dead() {
		t.Fatalf("%+v", self)
	}
	found := false
	for _, process := range Processes() {
		found = found || process.PID == self.PID && process.StartTime == self.StartTime
	}
	if !found {
		t.Fatal("this process is not listed")
	}
	t.Setenv("SET_LATER", "1") // the kernel shows the environment at the start
	if HasEnviron(self.PID, "SET_LATER=1") || !HasEnviron(self.PID, "PATH="+os.Getenv("PATH")) || HasEnviron(self.PID, "PATH") {
		t.Fatal("the environment is read wrongly")
	}
}

func TestParseMemory(t *testing.T) {
	text := "MemTotal:         524288 kB\nMemFree:          503608 kB\nMemAvailable:     503600 kB\nBuffers:               0 kB\nCached:             6760 kB\nSwapCached:  9 kB"
	want := Memory{Total: 524288 << 10, Free: 503608 << 10, Available: 503600 << 10, Cached: 6760 << 10}
	if got := parseMemory([]byte(text)); got != want {
		t.Fatalf("%+v", got)
	}
	if got := parseMemory(nil); got != (Memory{}) {
		t.Fatalf("%+v", got)
	}
	reader, err := NewMemoryReader()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	if allocations := testing.AllocsPerRun(10, func() { _, _ = reader.Read() }); allocations > 0 {
		t.Fatalf("reading allocates %v times", allocations)
	}
}

func TestParseListeners(t *testing.T) {
	v4 := `  sl  local_address rem_address   st tx_queue
  16: 0100007F:223D 00000000:0000 0A 00000000:00000000
  21: 024DE70A:223E 00000000:0000 0A 00000000:00000000
  22: 00000000:0016 00000000:0000 01 00000000:00000000
  23: nonsense
`
	v6 := `   3: 00000000000000000000000000000000:C33F 00000000000000000000000000000000:0000 0A
   4: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A
   5: 0000000000000000FFFF00000100007F:0051 00000000000000000000000000000000:0000 0A
`
	if got := fmt.Sprint(parseListeners(v4), parseListeners(v6)); got != "[127.0.0.1:8765 10.231.77.2:8766] [[::]:49983 [::1]:80 127.0.0.1:81]" {
		t.Fatalf("%s", got)
	}
}

func TestParseGateways(t *testing.T) {
	table := `Iface	Destination	Gateway	Flags	RefCnt	Use	Metric	Mask	MTU	Window	IRTT
eth0	004DE70A	00000000	0001	0	0	0	3FFFFFFF	0	0	0
eth0	00000000	014DE70A	0003	0	0	0	00000000	0	0	0
eth0	00000000	024DE70A	0003	0	0	0	000000FF	0	0	0
lo	00000000	00000000	0003	0	0	0	00000000	0	0	0
`
	if got := fmt.Sprint(parseGateways(table)); got != "[10.231.77.1]" {
		t.Fatalf("%s", got)
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("42 (a) S 1 1 1 0 0 0 0 0 0 0 1 1 0 0 0 0 1 0 5 5 5 5")
	f.Add("  16: 0100007F:223D 00000000:0000 0A")
	f.Fuzz(func(_ *testing.T, text string) {
		parseStat(1, []byte(text))
		parseMemory([]byte(text))
		parseListeners(text)
		parseGateways(text)
	})
}
