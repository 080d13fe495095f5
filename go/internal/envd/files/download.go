package files

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/asuser"
	"forkyard.dev/forkyard/internal/envd/users"
)

func (h *Handler) download(w http.ResponseWriter, r *http.Request) error {
	req, err := h.begin(r, access.Read)
	if err != nil {
		return err
	}
	path, err := req.resolve(req.query.Get("path"))
	if err != nil {
		return err
	}
	file, info, err := openRegular(req.user, path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	useGzip, err := negotiate(r.Header)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Vary", "Accept-Encoding")
	header.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": info.Name()}))
	head := make([]byte, sampleSize)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	head = head[:n]
	header.Set("Content-Type", contentType(path, head))
	switch {
	case useGzip:
		header.Set("Content-Encoding", "gzip")
		return sendGzip(w, r, head, file)
	case info.Size() == 0 && n > 0:
		// Files of /proc say they are empty: their size is known at their end only.
		return sendAll(w, r, head, file)
	default:
		http.ServeContent(w, r, "", info.ModTime(), file)
		return nil
	}
}

// openRegular opens a file for reading with the rights of the user.
func openRegular(user users.User, path string) (*os.File, os.FileInfo, error) {
	var file *os.File
	err := asuser.Run(user, func() (err error) {
		// Without O_NONBLOCK the open of a named pipe would wait for a writer.
		file, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fail(http.StatusNotFound, "path '%s' does not exist", path)
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fail(http.StatusBadRequest, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		err = fail(http.StatusBadRequest, "path '%s' is not a regular file", path)
	default:
		return file, info, nil
	}
	_ = file.Close()
	return nil, nil, err
}

// negotiate chooses gzip if the client lists it and does not like identity better. Parts of a file and
// conditions are served as identity only.
func negotiate(header http.Header) (useGzip bool, err error) {
	identity, zipped, listed := 1.0, 0.0, false
	for _, line := range header.Values("Accept-Encoding") {
		for item := range strings.SplitSeq(line, ",") {
			name, quality := parseCoding(item)
			switch name {
			case "identity":
				identity, listed = quality, true
			case "gzip", "x-gzip":
				zipped = quality
			case "*":
				if !listed {
					identity = quality
				}
			}
		}
	}
	for _, name := range []string{"Range", "If-Range", "If-Modified-Since", "If-None-Match", "If-Match", "If-Unmodified-Since"} {
		if header.Get(name) != "" && identity > 0 {
			return false, nil
		}
	}
	if zipped > 0 && (!listed || zipped >= identity) {
		return true, nil
	}
	if identity > 0 {
		return false, nil
	}
	return false, fail(http.StatusNotAcceptable, "no acceptable encoding found, supported: [identity, gzip]")
}

func parseCoding(item string) (name string, quality float64) {
	name, rest, _ := strings.Cut(item, ";")
	quality = 1
	key, value, found := strings.Cut(strings.TrimSpace(rest), "=")
	if found && strings.EqualFold(strings.TrimSpace(key), "q") {
		if parsed, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && parsed >= 0 && parsed <= 1 {
			quality = parsed
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), quality
}

// contentType goes by the few names that browsers must not guess, then by the content.
func contentType(path string, head []byte) string {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".css":
		return "text/css; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".json":
		return "application/json"
	case ".svg":
		return "image/svg+xml"
	case ".md", ".csv", ".py", ".sh":
		return "text/plain; charset=utf-8"
	default:
		return http.DetectContentType(head)
	}
}

// sampleSize is how much of a file decides whether it is worth compressing.
const sampleSize = 16 << 10

var fastWriters = sync.Pool{New: func() any {
	writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	return writer
}}

// sendGzip sends head and the rest of the file compressed. What does not shrink is stored: deflating it
// would make a download of an archive several times slower for nothing.
func sendGzip(w http.ResponseWriter, r *http.Request, head []byte, rest io.Reader) error {
	if r.Method == http.MethodHead {
		return nil
	}
	if !compressible(head) {
		stored, err := gzip.NewWriterLevel(w, gzip.NoCompression)
		if err != nil {
			return err
		}
		return finishGzip(stored, head, rest)
	}
	writer, _ := fastWriters.Get().(*gzip.Writer)
	defer fastWriters.Put(writer)
	writer.Reset(w)
	return finishGzip(writer, head, rest)
}

func finishGzip(writer *gzip.Writer, head []byte, rest io.Reader) error {
	_, err := writer.Write(head)
	if err == nil {
		_, err = io.Copy(writer, rest)
	}
	if err == nil {
		err = writer.Close()
	}
	return abortOn(err)
}

func compressible(sample []byte) bool {
	if len(sample) < 512 {
		return true
	}
	writer, _ := fastWriters.Get().(*gzip.Writer)
	defer fastWriters.Put(writer)
	var shrunk bytes.Buffer
	writer.Reset(&shrunk)
	_, _ = writer.Write(sample)
	_ = writer.Close()
	return shrunk.Len() < len(sample)*9/10
}

func sendAll(w http.ResponseWriter, r *http.Request, head []byte, rest io.Reader) error {
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	if r.Method == http.MethodHead {
		return nil
	}
	_, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), rest))
	return abortOn(err)
}

// abortOn breaks the connection when a body that was begun cannot be finished: a clean end would pass for
// the whole file.
func abortOn(err error) error {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}
