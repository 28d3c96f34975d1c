/**
 * A program of its own: it runs `docker` and `podman` for bench/compare.ts, in network and mount namespaces of its own,
 * so that neither changes the packet filter of the machine. It reads one JSON request a line and answers with
 * milliseconds.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { runCommand } from '../../src/lib/run-command.ts'
import { benchPrograms } from './bench-programs.ts'
import { pause } from './pause.ts'

export type ToolName = 'docker' | 'podman'
export type ToolRequest =
  /** From the start of a container to the end of a first command in it, and then another command after a rest. */
  | { readonly tool: ToolName; readonly do: 'first'; readonly restMs: number }
  /** Starts containers, some at a time, and removes them. */
  | { readonly tool: ToolName; readonly do: 'starts'; readonly count: number; readonly atOnce: number }
export type ToolAnswer = { readonly ms: number; readonly execMs: number } | { readonly error: string }

const LIMIT_MS = 60_000
const READY_LIMIT_MS = 30_000
const STOP_LIMIT_MS = 10_000
const programs = benchPrograms()
const [base = '', rootfs = ''] = process.argv.slice(2)
const IMAGE = 'localhost/bench:latest'
const RUN_OPTIONS = ['--cpus', '1', '--memory', '512m', IMAGE, 'sleep', '1000']

type Tool = {
  readonly command: readonly string[]
  readonly env: NodeJS.ProcessEnv
  /** The command that kills and removes containers at once. */
  readonly remove: readonly string[]
}

let closeDocker = (): Promise<void> => Promise.resolve()
const tools = new Map<ToolName, Tool>()
for (const [name, open] of [
  ['docker', openDocker],
  ['podman', openPodman],
] as const) {
  try {
    const tool = await open()
    await call(tool, ['import', rootfs, IMAGE])
    tools.set(name, tool)
  } catch (error) {
    process.stderr.write(
      `${name} can not be measured here: ${error instanceof Error ? error.message : String(error)}\n`,
    )
  }
}
process.stdout.write(`${JSON.stringify([...tools.keys()])}\n`)

let made = 0
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line) as ToolRequest // written by bench/compare.ts
  const answer = await perform(request).catch((error: unknown) => ({ error: String(error) }))
  process.stdout.write(`${JSON.stringify(answer)}\n`)
}

await closeDocker()

async function perform(request: ToolRequest): Promise<ToolAnswer> {
  const tool = tools.get(request.tool)
  if (tool === undefined) throw new Error(`there is no ${request.tool}`)
  if (request.do === 'first') return first(tool, request.restMs)
  const names = Array.from({ length: request.count }, () => `bench-${String(++made)}`)
  const left = [...names]
  const fromMs = performance.now()
  const one = async (): Promise<void> => {
    for (let name = left.pop(); name !== undefined; name = left.pop()) await call(tool, ['run', '-d', '--name', name, ...RUN_OPTIONS]) // prettier-ignore
  }
  await Promise.all(Array.from({ length: request.atOnce }, one))
  const ms = performance.now() - fromMs
  await call(tool, [...tool.remove, ...names])
  return { ms, execMs: 0 }
}

async function first(tool: Tool, restMs: number): Promise<ToolAnswer> {
  const name = `bench-${String(++made)}`
  const fromMs = performance.now()
  await call(tool, ['run', '-d', '--name', name, ...RUN_OPTIONS])
  await call(tool, ['exec', name, 'true'])
  const ms = performance.now() - fromMs
  await pause(restMs)
  const execFromMs = performance.now()
  await call(tool, ['exec', name, 'true'])
  const execMs = performance.now() - execFromMs
  await call(tool, [...tool.remove, name])
  return { ms, execMs }
}

async function call({ command: [file = '', ...before], env }: Tool, args: readonly string[]): Promise<string> {
  const { stdout } = await runCommand(file, [...before, ...args], { timeoutMs: LIMIT_MS, env })
  return stdout
}

/** Starts a docker of its own. It ends with this process. */
async function openDocker(): Promise<Tool> {
  const socket = `unix://${join(base, 'docker.sock')}`
  const folders = ['--data-root', join(base, 'docker'), '--exec-root', join(base, 'docker-exec')]
  const options = [...folders, '--pidfile', join(base, 'docker.pid'), '-H', socket]
  const env = { ...process.env, ...programs.env }
  const daemon = spawn(programs.find('dockerd'), options, { stdio: ['ignore', 'pipe', 'pipe'], env })
  let output = ''
  for (const stream of [daemon.stdout, daemon.stderr]) stream.on('data', (data: Buffer) => (output = (output + data.toString()).slice(-2_000))) // prettier-ignore
  closeDocker = async () => {
    if (daemon.exitCode !== null) return
    const ended = once(daemon, 'exit')
    daemon.kill('SIGTERM')
    const late = setTimeout(() => daemon.kill('SIGKILL'), STOP_LIMIT_MS)
    await ended
    clearTimeout(late)
  }
  const tool = { command: [programs.find('docker'), '-H', socket], env, remove: ['rm', '-f'] }
  const deadlineMs = performance.now() + READY_LIMIT_MS
  while (performance.now() < deadlineMs && daemon.exitCode === null) {
    try {
      await call(tool, ['info'])
      return tool
    } catch {
      await pause(200) // it is not ready yet
    }
  }
  throw new Error(`dockerd did not become ready: ${output}`)
}

/** Podman with a storage and settings of its own. It has no daemon. */
async function openPodman(): Promise<Tool> {
  const file = programs.find('podman')
  const home = join(base, 'home')
  await mkdir(join(home, '.config/containers'), { recursive: true })
  await writeFile(join(home, '.config/containers/policy.json'), '{"default": [{"type": "insecureAcceptAnything"}]}')
  const at = (path: string): string => (existsSync(`/${path}`) ? `/${path}` : join(programs.folder, path))
  const networks = join(base, 'networks')
  await mkdir(networks)
  await writeFile(join(networks, '87-podman-bridge.conflist'), await readFile(at('etc/cni/net.d/87-podman-bridge.conflist'))) // prettier-ignore
  const settings = join(base, 'containers.conf')
  // crun refuses machines with both versions of cgroups.
  const runtime = existsSync('/sys/fs/cgroup/unified') ? 'runc' : 'crun'
  const seccomp = at('usr/share/containers/seccomp.json')
  await writeFile(
    settings,
    `[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\nseccomp_profile = "${seccomp}"\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "${runtime}"\nconmon_path = ["${programs.find('conmon')}"]\n[engine.runtimes]\n${runtime} = ["${programs.find(runtime)}"]\n[network]\nnetwork_backend = "cni"\ncni_plugin_dirs = ["${at('usr/lib/cni')}"]\nnetwork_config_dir = "${networks}"\n`,
  )
  const storage = [
    '--root',
    join(base, 'podman'),
    '--runroot',
    join(base, 'podman-run'),
    '--tmpdir',
    join(base, 'podman-tmp'),
  ]
  const env = { ...process.env, ...programs.env, HOME: home, CONTAINERS_CONF: settings }
  // Without -t 0 it waits 10 s for an end by SIGTERM.
  return { command: [file, ...storage, '--storage-driver', 'overlay'], env, remove: ['rm', '-f', '-t', '0'] }
}
