import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runCommand } from '../src/lib/run-command.ts'
import { freePort } from '../test/support/free-port.ts'
import { benchPrograms } from './support/bench-programs.ts'
import { startCloud } from './support/cloud.ts'
import { formatSpreadMs, median } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { startSandbox } from './support/sandbox.ts'

const WARMUPS = 3
const SAMPLES = 40
const LIMIT_MS = 10_000
const REST_MS = 50
const GOAL_RATIO = 1.5
const SSHD_PORT = 2200

/** `ssh host true` into a sandbox. The limit is the same to OpenSSH's `sshd`, which the set-up of `npm run bench` fetches. The samples alternate. */
export async function benchSsh(): Promise<readonly ResultRow[]> {
  const dir = await mkdtemp(join(tmpdir(), 'sandyard-bench-ssh-'))
  await chmod(dir, 0o755)
  const ourPort = await freePort()
  await using cloud = await startCloud({ SANDYARD_SSH_PORT: String(ourPort) })
  const { name } = await startSandbox(cloud, 'bench-ssh')
  for (const key of ['host', 'key'])
    await runCommand('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(dir, key)], { timeoutMs: LIMIT_MS })
  const public_key = readFileSync(join(dir, 'key.pub'), 'utf8').trim()
  const added = await fetch(`http://${cloud.host}:${String(cloud.port)}/v1/ssh-keys`, {
    method: 'POST',
    headers: cloud.headers,
    body: JSON.stringify({ name: 'bench', public_key }),
  })
  if (!added.ok) throw new Error(`adding the key: ${await added.text()}`)
  await using sshd = await startSshd(dir, public_key)
  const options = Object.entries({
    IdentityFile: join(dir, 'key'),
    IdentitiesOnly: 'yes',
    StrictHostKeyChecking: 'no',
    UserKnownHostsFile: '/dev/null',
    BatchMode: 'yes',
    LogLevel: 'ERROR',
  }).flatMap(([key, value]) => ['-o', `${key}=${value}`])
  // Both clients start through `nsenter`, so that both ways include it.
  const ssh = (pid: number, user: string, port: number) => async () => {
    const command = ['ssh', '-F', 'none', ...options, '-p', String(port), `${user}@127.0.0.1`, 'true']
    await runCommand('nsenter', ['-t', String(pid), '-n', '-m', ...command], { timeoutMs: LIMIT_MS })
  }
  const ways = { sandbox: ssh(process.pid, `${name}.default`, ourPort), sshd: ssh(sshd.pid, 'root', SSHD_PORT) }
  const took: { readonly sandbox: number[]; readonly sshd: number[] } = { sandbox: [], sshd: [] }
  for (let sample = -WARMUPS; sample < SAMPLES; sample++) {
    for (const way of ['sandbox', 'sshd'] as const) {
      await pause(REST_MS)
      const beganMs = performance.now()
      await ways[way]()
      if (sample >= 0) took[way].push(performance.now() - beganMs)
    }
  }
  await rm(dir, { recursive: true })
  const ratio = median(took.sandbox) / median(took.sshd)
  return [
    {
      benchmark: 'ssh',
      what: '`ssh host true` into a sandbox (min / median / p95)',
      measured: formatSpreadMs(took.sandbox),
      limit: `sshd ${formatSpreadMs(took.sshd)}`,
      ratio,
      goal: `<= ${String(GOAL_RATIO)}`,
      isMet: ratio <= GOAL_RATIO,
      samples: took,
    },
  ]
}

/**
 * Starts OpenSSH's server in a network namespace of its own, with the users that it needs. The shell is `sh` in an empty home
 * folder, as in the sandbox, because a shell's start files would count.
 */
async function startSshd(dir: string, publicKey: string): Promise<{ readonly pid: number } & AsyncDisposable> {
  await writeFile(join(dir, 'authorized'), `${publicKey}\n`, { mode: 0o644 })
  await writeFile(join(dir, 'passwd'), `root:x:0:0::/:/bin/sh\nsshd:x:65533:65534::/run/sshd:/bin/false\n`)
  await mkdir('/run/sshd', { recursive: true, mode: 0o755 })
  const settings = { Port: SSHD_PORT, HostKey: join(dir, 'host'), AuthorizedKeysFile: join(dir, 'authorized'), StrictModes: 'no', PermitRootLogin: 'yes', UsePAM: 'no', UseDNS: 'no', PrintMotd: 'no', PidFile: 'none' } // prettier-ignore
  await writeFile(join(dir, 'sshd_config'), Object.entries(settings).map(([key, value]) => `${key} ${String(value)}\n`).join('')) // prettier-ignore
  const script = `ip link set lo up && mount --bind ${dir}/passwd /etc/passwd && exec env \${LIBRARIES:+LD_LIBRARY_PATH="$LIBRARIES"} "$SSHD" -D -e -f ${dir}/sshd_config`
  const programs = benchPrograms()
  const env = { ...process.env, SSHD: programs.find('sshd'), LIBRARIES: programs.env['LD_LIBRARY_PATH'] ?? '' }
  const child = spawn('unshare', ['-n', '-m', 'sh', '-c', script], { stdio: ['ignore', 'ignore', 'pipe'], env })
  const { pid } = child
  if (pid === undefined) throw new Error('unshare is not installed (Debian: util-linux)')
  const [said] = await once(child.stderr, 'data')
  if (!String(said).includes('listening')) throw new Error(`sshd (Debian: openssh-server): ${String(said)}`)
  child.stderr.resume()
  return {
    pid,
    async [Symbol.asyncDispose]() {
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      await ended
    },
  }
}
