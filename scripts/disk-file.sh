# A disk in a file: `disk_file FILE MIB`; to be sourced. With WRITTEN every byte of it was
# written once: a flush after a write into a hole also waits for the journal of the file
# system below.
disk_file() {
	rm -f "$1"
	if [ -n "${WRITTEN:-}" ]; then
		openssl enc -aes-128-ctr -pass pass:d -nosalt -pbkdf2 -iter 1 </dev/zero 2>/dev/null |
			head -c "${2}M" | dd of="$1" bs=4M iflag=fullblock conv=fsync 2>/dev/null
	else
		truncate -s "${2}M" "$1"
	fi
	[ -s "$1" ]
}
