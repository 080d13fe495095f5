package calls

import (
	"os"
	"sync"
)

const (
	// A recording keeps the first half of this and the last half; what lies between is dropped.
	maxRecording = 64 << 20
	headSize     = maxRecording / 2
	tailSize     = maxRecording - headSize
	// maxRead bounds the data of one answer.
	maxRead = 1 << 20
)

// recording keeps one output of a call in a file: the head at its place, the tail in a ring behind it.
// The file is made at the first byte.
type recording struct {
	path string

	mu    sync.Mutex
	file  *os.File
	total int64
	// lostFrom and lostTo are the range that could not be written, for instance on a full disk.
	lostFrom, lostTo int64
	closed           bool
}

// Cut is a range of bytes that was dropped.
type Cut struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Output is a piece of a recording.
type Output struct {
	Offset int64  `json:"offset"` // of data; after the asked one if that was cut
	Data   []byte `json:"data"`
	Next   int64  `json:"next"`  // what to ask for next
	Total  int64  `json:"total"` // all bytes written so far
	Cut    *Cut   `json:"cut,omitempty"`
}

// write appends; what cannot be stored is counted as lost, and the command goes on.
func (r *recording) write(data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(data) > 0 && !r.closed {
		place, room := r.place(r.total)
		n := int(min(room, int64(len(data))))
		if !r.writeAt(data[:n], place) {
			r.lose(r.total, r.total+int64(n))
		}
		r.total += int64(n)
		data = data[n:]
	}
}

// place is where in the file the byte at an offset lies, and how many bytes follow it there.
func (r *recording) place(offset int64) (place, room int64) {
	if offset < headSize {
		return offset, headSize - offset
	}
	inRing := (offset - headSize) % tailSize
	return headSize + inRing, tailSize - inRing
}

func (r *recording) writeAt(data []byte, place int64) bool {
	if r.file == nil {
		file, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return false
		}
		r.file = file
	}
	_, err := r.file.WriteAt(data, place)
	return err == nil
}

func (r *recording) lose(from, to int64) {
	if r.lostTo == 0 {
		r.lostFrom = from
	}
	r.lostTo = to
}

// cut is the dropped range at this moment, nil if there is none.
func (r *recording) cut() *Cut {
	from, to := r.lostFrom, r.lostTo
	if r.total > maxRecording {
		if to == 0 {
			from = headSize
		}
		from, to = min(from, headSize), max(to, r.total-tailSize)
	}
	if to == 0 {
		return nil
	}
	return &Cut{From: from, To: to}
}

// read returns up to limit bytes from an offset on.
func (r *recording) read(offset int64, limit int) Output {
	r.mu.Lock()
	defer r.mu.Unlock()
	cut := r.cut()
	offset = min(offset, r.total)
	end := r.total
	if cut != nil {
		if offset >= cut.From && offset < cut.To {
			offset = cut.To
		} else if offset < cut.From {
			end = cut.From
		}
	}
	data := make([]byte, 0, min(int64(limit), end-offset))
	for offset+int64(len(data)) < end && len(data) < cap(data) {
		place, room := r.place(offset + int64(len(data)))
		n := int(min(room, int64(cap(data)-len(data))))
		if r.file == nil {
			break
		}
		if _, err := r.file.ReadAt(data[len(data):len(data)+n], place); err != nil {
			break
		}
		data = data[:len(data)+n]
	}
	return Output{Offset: offset, Data: data, Next: offset + int64(len(data)), Total: r.total, Cut: cut}
}

// has says whether there is something to read from an offset on.
func (r *recording) has(offset int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return offset < r.total
}

// discard removes the file; later writes are dropped.
func (r *recording) discard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.file != nil {
		_ = r.file.Close()
		_ = os.Remove(r.path)
		r.file = nil
	}
}
