package calls

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// byteAt is what the test writes at an offset.
func byteAt(offset int64) byte { return byte(offset*7 + offset>>13) }

func fill(r *recording, size int64, pieces *rand.Rand) {
	for r.total < size {
		n := min(size-r.total, 1+pieces.Int64N(3<<20))
		data := make([]byte, n)
		for i := range data {
			data[i] = byteAt(r.total + int64(i))
		}
		r.write(data)
	}
}

func TestRecordingKeepsHeadAndTail(t *testing.T) {
	pieces := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int64{0, 1, headSize, headSize + 1, maxRecording - 1, maxRecording, maxRecording + 1, 2*maxRecording + 12345} {
		r := &recording{path: filepath.Join(t.TempDir(), "r")}
		fill(r, size, pieces)
		var got int64
		for at := int64(0); ; {
			out := r.read(at, 777777)
			if out.Total != size {
				t.Fatalf("%d: total %d", size, out.Total)
			}
			if size > maxRecording {
				if out.Cut == nil || out.Cut.From != headSize || out.Cut.To != size-tailSize {
					t.Fatalf("%d: cut %+v", size, out.Cut)
				}
				if out.Offset >= out.Cut.From && out.Offset < out.Cut.To {
					t.Fatalf("%d: data from inside the cut", size)
				}
			} else if out.Cut != nil {
				t.Fatalf("%d: cut %+v", size, out.Cut)
			}
			for i, b := range out.Data {
				if b != byteAt(out.Offset+int64(i)) {
					t.Fatalf("%d: wrong byte at %d", size, out.Offset+int64(i))
				}
			}
			got += int64(len(out.Data))
			if len(out.Data) == 0 && out.Next == size {
				break
			}
			at = out.Next
		}
		if got != min(size, maxRecording) {
			t.Fatalf("%d: read %d bytes", size, got)
		}
		if out := r.read(size+99, 10); out.Offset != size || len(out.Data) != 0 {
			t.Fatalf("beyond the end: %+v", out)
		}
		r.discard()
		if _, err := os.Stat(r.path); err == nil {
			t.Fatal("the file is still there")
		}
	}
}

func TestWhatCannotBeStoredIsReported(t *testing.T) {
	r := &recording{path: "/proc/no/such/file"}
	r.write([]byte("lost"))
	r.path = filepath.Join(t.TempDir(), "r")
	r.write([]byte("kept"))
	out := r.read(0, 100)
	if out.Cut == nil || *out.Cut != (Cut{0, 4}) || out.Offset != 4 || !bytes.Equal(out.Data, []byte("kept")) || out.Total != 8 {
		t.Fatalf("%+v", out)
	}
	if !r.has(7) || r.has(8) {
		t.Fatal("has is wrong")
	}
}
