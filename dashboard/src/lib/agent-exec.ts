import { asBytes } from '../../../src/channel/cbor.ts'
import type { Agent, Session } from './agent.ts'

/** Programs in a sandbox, over its command channel. */

export type Shell = { write(data: Uint8Array): void; resize(rows: number, cols: number): void }
type ShellHandlers = { readonly onOutput: (data: Uint8Array) => void; readonly onEnd: (why: string) => void }

/** The user's own shell, from /etc/passwd, in the user's folder. It needs no program but itself. */
const SHELL = [
  'shell= home=',
  'while read -r key id rest; do [ "$key" = Uid: ] && break; done < /proc/self/status',
  'if [ -r /etc/passwd ]; then while IFS=: read -r name x uid gid full dir login; do',
  '  [ "$uid" = "$id" ] && { shell=$login home=$dir; break; }',
  'done < /etc/passwd; fi',
  'case $shell in */nologin|*/false) shell=;; esac',
  '[ -x "$shell" ] || shell=/bin/sh',
  'export SHELL="$shell"; [ -n "$HOME" ] || export HOME="${home:-/}"',
  'cd "$HOME" 2>/dev/null || cd /',
  'exec "$shell" -l',
].join('\n')

/** Starts a shell on a terminal of this size. */
export function startShell(
  agent: Agent,
  size: { readonly rows: number; readonly cols: number },
  handlers: ShellHandlers,
): Shell {
  const session = exec(agent, ['/bin/sh', '-c', SHELL], { ...handlers, ...size })
  return {
    write: (data) => session.send('core.exec.stdin', { data }),
    resize: (rows, cols) => session.send('core.exec.resize', { rows, cols }),
  }
}

/** Runs a program without a terminal. Resolves with its output. */
export function runProgram(agent: Agent, words: readonly string[]): Promise<string> {
  const decoder = new TextDecoder()
  let output = ''
  return new Promise((resolve) => {
    exec(agent, words, {
      onOutput: (data) => {
        output += decoder.decode(data, { stream: true })
      },
      onEnd: () => resolve(output),
    })
  })
}

function exec(
  agent: Agent,
  [cmd = '', ...args]: readonly string[],
  { onOutput, onEnd, rows, cols }: ShellHandlers & { readonly rows?: number; readonly cols?: number },
): Session {
  const tty = rows !== undefined
  const payload = {
    cmd,
    args,
    env: tty ? ['TERM=xterm-256color'] : [],
    cwd: null,
    user: null,
    tty,
    rows: rows ?? 24,
    cols: cols ?? 80,
    rlimits: [],
  }
  return agent.start('core.exec.request', payload, ({ type, payload: { data, code, message }, isLast }) => {
    if (type === 'core.exec.stdout' || type === 'core.exec.stderr') onOutput(asBytes(data))
    if (isLast) onEnd(type === 'core.exec.exited' ? `exit code ${String(code)}` : String(message))
  })
}
