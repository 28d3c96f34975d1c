import { spawn, type ChildProcess } from 'node:child_process'
import { copyFileSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { runCommand, tryCommand, type CommandResult } from '../../src/lib/run-command.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import type { RealServer } from './server.ts'

const SERVER_PROCESS = join(import.meta.dirname, 'ssh-server-process.ts')
const LIMIT_MS = 120_000 * TIMEOUT_FACTOR

/** OpenSSH's own client, which reaches a sandbox through the SDK's SSH server. */
export type OpenSsh = {
  /** A temporary folder for the test's files. */
  readonly dir: string
  /** `ssh OPTIONS… sandbox COMMAND…`. */
  ssh(options: readonly string[], command?: readonly string[], input?: string | Buffer): Promise<CommandResult>
  /** `sftp -b -` with these commands. */
  sftp(commands: readonly string[]): Promise<CommandResult>
  /** Starts `ssh OPTIONS… sandbox` and leaves it running. To end it, close its streams or send a signal. */
  start(options: readonly string[]): ChildProcess
  remove(): void
}

/** Why OpenSSH's client can't be used here, or false when it can. For `{ skip }`. */
export function whyNoOpenSsh(): string | false {
  const missing = whyMissing('ssh', 'sftp', 'ssh-keygen')
  return missing === false ? false : `${missing} (Debian: openssh-client)`
}

/** Why a test that needs these programs of this machine can't run, or false when it can. For `{ skip }`. */
export function whyMissing(...names: readonly string[]): string | false {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const missing = names.find((name) => !folders.some((folder) => existsSync(join(folder, name))))
  return missing === undefined ? false : `${missing} is not installed`
}

/** Creates the keys and settings with which `ssh` reaches a sandbox. */
export async function makeOpenSsh(server: RealServer, sandbox: string): Promise<OpenSsh> {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-ssh-'))
  const keygen = (name: string): Promise<unknown> =>
    runCommand('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(dir, name)], { timeoutMs: LIMIT_MS })
  await keygen('host')
  await keygen('client')
  copyFileSync(join(dir, 'client.pub'), join(dir, 'authorized'))
  const proxy = [process.execPath, SERVER_PROCESS, sandbox, join(dir, 'host'), join(dir, 'authorized')]
  const settings = {
    HostName: '127.0.0.1',
    User: 'root',
    ProxyCommand: proxy.join(' '),
    IdentityFile: join(dir, 'client'),
    IdentitiesOnly: 'yes',
    UserKnownHostsFile: join(dir, 'known'),
    StrictHostKeyChecking: 'accept-new',
    BatchMode: 'yes',
    LogLevel: 'ERROR',
    ExitOnForwardFailure: 'yes',
  }
  const lines = Object.entries(settings).map(([key, value]) => `  ${key} ${value}`)
  const config = join(dir, 'config')
  writeFileSync(config, ['Host sandbox', ...lines, ''].join('\n'))
  const options = { timeoutMs: LIMIT_MS, env: { ...process.env, ...server.clientEnv }, cwd: dir }
  return {
    dir,
    ssh: (more, command = [], input = '') =>
      tryCommand('ssh', ['-F', config, ...more, 'sandbox', ...command], { ...options, input }),
    sftp: (commands) =>
      tryCommand('sftp', ['-F', config, '-b', '-', 'sandbox'], { ...options, input: `${commands.join('\n')}\n` }),
    start: (more) =>
      spawn('ssh', ['-F', config, ...more, 'sandbox'], {
        stdio: ['pipe', 'pipe', 'inherit'],
        env: options.env,
        cwd: dir,
      }),
    remove() {
      rmSync(dir, { recursive: true, force: true })
    },
  }
}
