package platform

import "testing"

func TestKernelLogs(t *testing.T) {
	if !isGVisor("<6>[    0.000000] Starting gVisor...\n<6>[    0.4] Daemonizing children...\n") {
		t.Fatal("gVisor is not known")
	}
	if isGVisor("<5>[    0.000000] Linux version 6.18.0 (gcc) #1 SMP\n") || isGVisor("") {
		t.Fatal("Linux is taken for gVisor")
	}
}
