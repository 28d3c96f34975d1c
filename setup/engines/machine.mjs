// A machine inside this machine, in which an engine runs: namespaces of its own for processes, mounts and the network.
// Two of them never meet, and nothing of one is left when it ends, also when this process is killed.
import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SetUpFailure } from '../say.mjs'

/** The folders of machines. They are short, because the path of a socket has at most 107 bytes. */
const parent = '/tmp'
const prefix = 'sandyard-engine-'
const startLimitMs = 30_000
const init = fileURLToPath(new URL('machine.sh', import.meta.url))

/**
 * Starts a machine. `engine` is the folder of the engine's programs, which is `FOLDER/engine` in the machine. The machine
 * ends with `close()`, or with this process. Needs root, unshare and nsenter.
 */
export async function startMachine(engine) {
  sweepMachines()
  const folder = mkdtempSync(join(parent, prefix))
  chmodSync(folder, 0o711) // users of sandboxes pass through
  writeFileSync(join(folder, 'owner'), String(process.pid))
  for (const name of ['log', 'parts']) mkdirSync(join(folder, name))
  const child = spawn(
    'unshare',
    ['--mount', '--net', '--pid', '--fork', '--kill-child', '--propagation=slave', '--', init, folder, engine],
    // A session of its own: Ctrl-C must end the tests before it ends the machine.
    { stdio: ['pipe', 'pipe', 'inherit'], detached: true },
  )
  child.stdin.on('error', () => undefined) // it has ended
  const ended = new Promise((resolve) => {
    child.once('exit', resolve)
    child.once('error', resolve)
  })
  const close = async () => {
    child.stdin.end()
    const timer = setTimeout(() => child.kill('SIGKILL'), startLimitMs)
    await ended
    clearTimeout(timer)
    removeMachine(folder)
  }
  try {
    await hasPrinted(child, 'ready', ended)
    const pid = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim()
    writeFileSync(join(folder, 'init.pid'), pid)
    return { folder, name: basename(folder), pid, part: (...given) => startPart(folder, ...given), close }
  } catch (error) {
    await close()
    throw error
  }
}

/**
 * Writes `parts/NAME.sh`, which starts a part of the engine in the machine, and runs it. The script writes the part's process
 * id to `parts/NAME.pid`, and its output to `log/NAME.log`. `script` is bash, and ends with `exec`.
 */
function startPart(folder, name, script) {
  const file = join(folder, 'parts', `${name}.sh`)
  const pidFile = join(folder, 'parts', `${name}.pid`)
  const lines = [
    '#!/usr/bin/env bash',
    'set -euo pipefail',
    `exec </dev/null >>${folder}/log/${name}.log 2>&1`,
    `read -r pid _ <${folder}/outer-proc/self/stat`,
    `echo "$pid" >${pidFile}.new && mv ${pidFile}.new ${pidFile}`, // a reader never finds it empty
    script,
  ]
  writeFileSync(file, `${lines.join('\n')}\n`, { mode: 0o755 })
  spawn('nsenter', [...enter(folder), file], { stdio: 'ignore', detached: true }).unref()
}

/** Runs a program in the machine to its end. Throws SetUpFailure if it fails. */
export function runInMachine({ folder }, program, args) {
  const { status, stdout, stderr } = spawnSync('nsenter', [...enter(folder), program, ...args], { encoding: 'utf8' })
  if (status !== 0) throw new SetUpFailure(`${program} ${args.join(' ')} failed:\n${stdout}${stderr}`)
  return stdout
}

/** Retries `test` until it returns a value other than undefined and false. Throws SetUpFailure with the log's end. */
export async function waitFor({ folder }, what, limitMs, test) {
  const end = Date.now() + limitMs
  for (;;) {
    const value = test()
    if (value !== undefined && value !== false) return value
    if (Date.now() > end) {
      const log = join(folder, 'log', `${what}.log`)
      const text = existsSync(log) ? readFileSync(log, 'utf8').split('\n').slice(-30).join('\n') : ''
      throw new SetUpFailure(`${what} was not ready within ${limitMs / 1000} s\n${text}`)
    }
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

function enter(folder) {
  const pid = readFileSync(join(folder, 'init.pid'), 'utf8')
  return [`--target=${pid}`, '--mount', '--net', '--pid', '--']
}

function hasPrinted(child, text, ended) {
  let output = ''
  return new Promise((resolve, reject) => {
    child.stdout.setEncoding('utf8').on('data', (part) => {
      output += part
      if (output.includes(text)) resolve()
    })
    void ended.then(() => reject(new SetUpFailure(`the machine did not start:\n${output}`)))
    setTimeout(() => reject(new SetUpFailure('the machine did not start in time')), startLimitMs).unref()
  })
}

/** Removes what machines left whose owner was killed: their cgroups and folders. */
function sweepMachines() {
  for (const name of readdirSync(parent).filter((one) => one.startsWith(prefix))) {
    const folder = join(parent, name)
    const owner = Number(readOr(join(folder, 'owner'), '0'))
    const isOurs = owner > 0 && readOr(`/proc/${owner}/cmdline`, '').includes('setup/')
    if (!isOurs) removeMachine(folder)
  }
}

function removeMachine(folder) {
  detachLoops(folder)
  const name = basename(folder)
  for (const hierarchy of ['', ...readdirSync('/sys/fs/cgroup')]) removeCgroup(join('/sys/fs/cgroup', hierarchy, name))
  removeCgroup('/sys/fs/cgroup/freezer/nomad') // of Nomad's driver raw_exec on cgroups of version 1; stays while it is used
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
}

/** Detaches the loop devices of files in the folder, which outlive their mounts unless they were attached with `autoclear`. */
function detachLoops(folder) {
  const { stdout } = spawnSync('losetup', ['--list', '--noheadings', '--output', 'NAME,BACK-FILE'], {
    encoding: 'utf8',
  })
  for (const line of (stdout ?? '').split('\n')) {
    const [device, file] = line.trim().split(/\s+/)
    if (file?.startsWith(`${folder}/`)) spawnSync('losetup', ['--detach', device])
  }
}

/** Removes a cgroup with those below it, except those that have processes. */
function removeCgroup(path) {
  let below
  try {
    below = readdirSync(path, { withFileTypes: true })
  } catch {
    return // it is not there
  }
  for (const entry of below) if (entry.isDirectory()) removeCgroup(join(path, entry.name))
  try {
    rmdirSync(path)
  } catch (error) {
    if (error.code !== 'EBUSY') throw error // another machine uses it
  }
}

function readOr(file, otherwise) {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return otherwise
  }
}
