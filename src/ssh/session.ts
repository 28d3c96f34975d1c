import { constants } from 'node:os'
import type ssh2 from 'ssh2'
import type { ExecSession } from '../channel-client/exec.ts'
import { joinSignals } from '../lib/join-signals.ts'
import { describeEnd, type SshConnection } from './shared-connection.ts'
import { SshRefusal } from './enter-sandbox.ts'
import { makeChannelWriter, type Receiver } from './channel-writer.ts'
import { pump } from './pump.ts'
import { serveSftp } from './sftp.ts'
import { ListenFailure } from './sandbox-listener.ts'
import { SHELL_SCRIPT } from './shell-script.ts'

/** Variables that a client may set: the language, the time zone, colours, and the protocol version of git. */
const ENV_NAMES = /^(LANG|LANGUAGE|LC_[A-Z]{1,30}|TZ|COLORTERM|GIT_PROTOCOL)$/
const ENV_MAX_ITEMS = 32
const ENV_MAX_CHARS = 4096
const TERM_SHAPE = /^[\w.+-]{1,64}$/
/** The exit code of a session that could not begin or was cut, as OpenSSH's client uses it for its own errors. */
const FAILED_CODE = 255
/** The exit code of a shell whose program doesn't exist. */
const NOT_FOUND_CODE = 127
/** Signals that an SSH client may send and hear of (RFC 4254, section 6.10). */
const SIGNALS = ['ABRT', 'ALRM', 'FPE', 'HUP', 'ILL', 'INT', 'KILL', 'PIPE', 'QUIT', 'SEGV', 'TERM', 'USR1', 'USR2'] as const // prettier-ignore

type Tty = { readonly rows: number; readonly cols: number; readonly term: string }

/** Serves one session of an SSH connection: a shell, a command or SFTP. `release` is called when it is over. */
export function serveSession(shared: SshConnection, session: ssh2.Session, release: () => void): void {
  const closed = new AbortController()
  const env: string[] = []
  let tty: Tty | null = null
  let hasAgent = false
  let hasBegun = false
  let running: ExecSession | null = null
  let served: Promise<unknown> = Promise.resolve()
  const { remoteAddress = '', remotePort = 0, localAddress = '', localPort = 0 } = shared.socket
  const peer = `${remoteAddress} ${String(remotePort)}`

  session.on('env', (accept, reject, { key, val }: { key: string; val: string }) => {
    const isTaken =
      ENV_NAMES.test(key) && val.length <= ENV_MAX_CHARS && !val.includes('\0') && env.length < ENV_MAX_ITEMS
    if (isTaken) env.push(`${key}=${val}`)
    if (isTaken) accept?.()
    else reject?.()
  })
  session.on('pty', (accept, reject, { rows, cols, ...info }) => {
    if (!shared.permits.pty) {
      reject?.()
      return
    }
    const term: unknown = 'term' in info ? info.term : undefined
    tty = { ...sizeOf(rows, cols), term: typeof term === 'string' && TERM_SHAPE.test(term) ? term : 'xterm' }
    accept?.()
  })
  session.on('window-change', (accept, _reject, info) => {
    const { rows, cols } = sizeOf(info.rows, info.cols)
    if (tty !== null) tty = { ...tty, rows, cols } // for a process that starts later
    running?.resize(rows, cols)
    accept?.()
  })
  session.on('signal', (accept, reject, { name }) => {
    const signal = signalNumber(name)
    if (signal !== null) running?.signal(signal)
    if (signal === null || running === null) reject?.()
    else accept?.()
  })
  session.on('auth-agent', (accept) => {
    hasAgent = true // whether the sandbox allows it is known once the connection has entered it
    accept?.()
  })
  session.once('close', () => {
    closed.abort(new Error('the session was closed'))
    void served.finally(release)
  })

  const run = async (channel: ssh2.ServerChannel, over: AbortSignal, command: string | null): Promise<void> => {
    try {
      const client = await shared.client()
      await shared.forwardsSettled()
      const agent = hasAgent ? await agentSocketOf(shared, channel) : null
      if (over.aborted) return
      running = client.exec({
        cmd: '/bin/sh',
        args: ['-c', SHELL_SCRIPT, 'sh', ...(command === null ? [] : [command])],
        env: [
          ...env,
          ...(agent === null ? [] : [`SSH_AUTH_SOCK=${agent}`]),
          `SSH_CLIENT=${peer} ${String(localPort)}`,
          `SSH_CONNECTION=${peer} ${localAddress} ${String(localPort)}`,
        ],
        cwd: null,
        user: null,
        tty,
      })
      await carry(running, channel, { ...shared, closed: over })
    } catch (error) {
      if (!(error instanceof SshRefusal)) shared.log.warn({ error }, 'an SSH session failed')
      fail(channel, error instanceof SshRefusal ? error.message : 'the session failed', FAILED_CODE)
    }
  }
  /** A session has one shell, command or subsystem (RFC 4254, section 6.5). The library would give no channel for a second one. */
  const begin = (
    accept: () => ssh2.ServerChannel,
    use: (channel: ssh2.ServerChannel, over: AbortSignal) => Promise<void>,
  ): void => {
    if (hasBegun) return
    hasBegun = true
    const channel = accept()
    const over = joinSignals(shared.closed, closed.signal)
    served = shared
      .limitInput(channel, () => use(channel, over.signal))
      .finally(() => {
        over[Symbol.dispose]()
      })
  }
  session.on('shell', (accept) => {
    begin(accept, (channel, over) => run(channel, over, null))
  })
  session.on('exec', (accept, _reject, { command }) => {
    begin(accept, (channel, over) => run(channel, over, command))
  })
  session.on('subsystem', (accept, reject, { name }) => {
    const release = name === 'sftp' && !hasBegun ? shared.sftpSessions.tryAcquire() : null
    if (release === null) reject()
    else begin(accept, (channel, over) => serveSftp(shared, channel, over).finally(release))
  })
}

/** The socket of the client's agent. If there is none for a reason that the person can change, it is printed. */
async function agentSocketOf(shared: SshConnection, channel: ssh2.ServerChannel): Promise<string | null> {
  try {
    return await shared.agentSocket()
  } catch (error) {
    if (!(error instanceof ListenFailure)) throw error
    channel.stderr.write(`sandyard: the agent can't be forwarded: ${error.message}\r\n`)
    return null
  }
}

/** Carries the streams of a process to a channel, and then its exit. A process whose channel is closed hears SIGHUP. */
async function carry(process: ExecSession, channel: ssh2.ServerChannel, receiver: Receiver): Promise<void> {
  const { closed } = receiver
  const left = new Promise<null>((resolve) => {
    const hangUp = (): void => {
      process.signal(constants.signals.SIGHUP)
      process.stdin.destroy()
      resolve(null)
    }
    closed.addEventListener('abort', hangUp, { once: true })
  })
  channel.on('error', () => undefined)
  channel.pipe(process.stdin)
  const writer = makeChannelWriter(channel, receiver)
  await Promise.all([pump(process.stdout, writer.stdout, closed), pump(process.stderr, writer.stderr, closed)])
  const exit = await Promise.race([process.exit, left])
  if (exit === null || closed.aborted) return
  switch (exit.kind) {
    case 'exited':
      channel.exit(exit.code)
      channel.end()
      return
    case 'signaled':
      channel.exit(signalName(exit.signal) ?? 'KILL', false, 'a signal ended the process')
      channel.end()
      return
    case 'failed':
      fail(channel, exit.message, exit.reason === 'not_found' ? NOT_FOUND_CODE : FAILED_CODE)
      return
    case 'lost':
      fail(channel, describeEnd(exit.why), FAILED_CODE)
  }
}

function fail(channel: ssh2.ServerChannel, message: string, code: number): void {
  if (!channel.writable) return
  channel.stderr.write(`sandyard: ${message}\r\n`)
  channel.exit(code)
  channel.end()
}

const SIZE_MAX = 0xffff

function sizeOf(rows: number, cols: number): { readonly rows: number; readonly cols: number } {
  const bounded = (value: number, absent: number): number =>
    Number.isInteger(value) && value > 0 ? Math.min(value, SIZE_MAX) : absent
  return { rows: bounded(rows, 24), cols: bounded(cols, 80) }
}

function signalNumber(name: string): number | null {
  const known = SIGNALS.find((one) => one === name.replace(/^SIG/, ''))
  return known === undefined ? null : constants.signals[`SIG${known}`]
}

function signalName(number: number | null): string | null {
  return SIGNALS.find((name) => constants.signals[`SIG${name}`] === number) ?? null
}
