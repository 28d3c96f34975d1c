/**
 * Starts the user's shell in the user's folder, with a command if there is one. The shell is the one in /etc/passwd, else
 * /bin/sh. It uses nothing but the shell itself, because an image may have no other program.
 */
export const SHELL_SCRIPT = [
  'shell= home=',
  'while read -r key id rest; do [ "$key" = Uid: ] && break; done < /proc/self/status',
  'if [ -r /etc/passwd ]; then while IFS=: read -r name x uid gid full dir login; do',
  '  [ "$uid" = "$id" ] && { shell=$login home=$dir; export USER="$name" LOGNAME="$name"; break; }',
  'done < /etc/passwd; fi',
  'case $shell in */nologin|*/false) shell=;; esac',
  '[ -n "$shell" ] && [ -x "$shell" ] || shell=/bin/sh',
  'export SHELL="$shell"; [ -n "$HOME" ] || export HOME="${home:-/}"',
  'cd "$HOME" 2>/dev/null || cd /',
  'unset key id rest name x uid gid full dir login home',
  'if [ $# = 0 ]; then exec "$shell" -l; else exec "$shell" -c "$1"; fi',
].join('\n')

/** Prints the user's id, group and folder, one a line. */
export const WHOAMI_SCRIPT = [
  'while read -r key id rest; do [ "$key" = Uid: ] && u=$id; [ "$key" = Gid: ] && g=$id; done < /proc/self/status',
  'cd "$HOME" 2>/dev/null || cd /; echo "$u"; echo "$g"; pwd',
].join('\n')
