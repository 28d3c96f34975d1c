import { spawn, type ChildProcess } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { join } from 'node:path'
import { TOOLS_FOLDER } from '../../src/contract/workers/guest-tools.ts'
import { VOLUME_FOLDER } from '../../src/worker/drivers/kubernetes/files/files-pod.ts'
import type { FakeKubelet, FakePod } from './fake-kubernetes.ts'

type Container = {
  readonly name: string
  readonly image: string
  readonly command?: readonly string[]
  readonly args?: readonly string[]
  readonly env?: readonly { readonly name: string; readonly value: string }[]
  readonly resources?: { readonly limits?: { readonly memory?: string } }
}
type Running = {
  readonly child: ChildProcess
  readonly ended: Promise<void>
  readonly output: string[]
  /** What `exec` started in the container. */
  readonly execs: Set<ChildProcess>
}

/** Memory that no node has: a Pod that asks for it waits for ever, as it does in a cluster. */
const UNSCHEDULABLE_MIB = 1_000_000
const START_MS = 30

/**
 * Makes a kubelet that runs the commands of Pods as processes of this machine, without isolation. `toolbox` is the
 * folder that takes the place of the one that the container `fill` fills, and `volumes` has a folder for each claim.
 * Images whose host is `127.0.0.1:1` can't be pulled, and those of `127.0.0.1:2` not at the first attempt, which has no
 * credential yet. Pulls from `127.0.0.1:3` never end.
 */
export function makeFakeKubelet(toolbox: string, volumes: string): FakeKubelet {
  const running = new Map<string, Running>()
  const local = (words: readonly string[]): readonly string[] =>
    words.map((word) =>
      word
        .replaceAll('$$', '$')
        .replaceAll(TOOLS_FOLDER, toolbox)
        .replace(/^\/toolbox(?=\/)/, toolbox),
    )

  return {
    run(pod, cluster) {
      const { name, uid } = pod.metadata
      const container = containerOf(pod)
      if (container === undefined) return
      const { name: containerName, image, command = [], args = [], resources } = container
      if (parseInt(resources?.limits?.memory ?? '0', 10) >= UNSCHEDULABLE_MIB) return
      const refusePull = (message: string): void => {
        const waiting = { reason: 'ErrImagePull', message }
        cluster.setStatus(name, { containerStatuses: [{ name: containerName, state: { waiting } }] })
      }
      const pullAndRun = (isAgain = false): void => {
        if (cluster.pods.get(name)?.metadata.uid !== uid) return
        if (image.startsWith('127.0.0.1:1/')) {
          refusePull('connection refused')
          return
        }
        if (image.startsWith('127.0.0.1:3/')) return
        if (image.startsWith('127.0.0.1:2/') && !isAgain) {
          refusePull('authorization failed: no basic auth credentials')
          setTimeout(pullAndRun, START_MS, true)
          return
        }
        const [program = '', ...rest] = local([...command, ...args])
        const child = spawn(program, rest, { env: variablesOf(container), detached: true })
        const output: string[] = []
        const keep = (data: Buffer): void => {
          output.push(data.toString('utf8'))
        }
        child.stdout.on('data', keep)
        child.stderr.on('data', keep)
        const execs = new Set<ChildProcess>()
        child.once('exit', () => {
          for (const one of execs) one.kill('SIGKILL') // as the kernel does when process 1 of a container ends
        })
        const ended = new Promise<void>((resolve) => {
          const end = (exitCode: number): void => {
            const terminated = { exitCode, reason: exitCode === 0 ? 'Completed' : 'Error' }
            const phase = exitCode === 0 ? 'Succeeded' : 'Failed'
            cluster.setStatus(name, { phase, containerStatuses: [{ name: containerName, state: { terminated } }] })
            resolve()
          }
          child.once('error', () => {
            end(127)
          })
          child.once('close', (code, signal) => {
            end(code ?? (signal === 'SIGTERM' ? 143 : 137))
          })
        })
        running.set(uid, { child, ended, output, execs })
        pod.spec['nodeName'] = 'node'
        const state = { running: { startedAt: '2026-01-01T00:00:00Z' } }
        cluster.setStatus(name, { phase: 'Running', containerStatuses: [{ name: containerName, state }] })
      }
      setTimeout(pullAndRun, START_MS)
    },
    async end(pod, graceSecs) {
      const one = running.get(pod.metadata.uid)
      if (one === undefined) return
      kill(one.child, 'SIGTERM')
      const timer = setTimeout(() => {
        kill(one.child, 'SIGKILL')
      }, graceSecs * 1_000)
      await one.ended
      clearTimeout(timer)
      kill(one.child, 'SIGKILL')
    },
    exec(pod, command, socket) {
      const [program = '', ...rest] = local(command)
      const container = containerOf(pod)
      const env: Record<string, string> = { ...variablesOf(container), KUBERNETES_PORT: 'tcp://10.0.0.1' }
      if (env['SANDYARD_VOLUME'] === VOLUME_FOLDER) env['SANDYARD_VOLUME'] = folderOfVolume(pod, volumes)
      const child = spawn(program, rest, { env })
      running.get(pod.metadata.uid)?.execs.add(child)
      const send = (channel: number, data: Buffer): void => {
        socket.send(Buffer.concat([Buffer.of(channel), data]))
      }
      for (const [channel, stream] of [
        [1, child.stdout],
        [2, child.stderr],
      ] as const)
        stream.on('data', (data: Buffer) => {
          send(channel, data)
        })
      child.stdin.on('error', () => undefined)
      socket.on('message', (message: Buffer) => {
        if (message[0] === 0) child.stdin.write(message.subarray(1))
        else if (message[0] === 255) child.stdin.end()
      })
      socket.on('close', () => child.stdin.end())
      child.once('error', (error) => {
        send(3, Buffer.from(JSON.stringify({ status: 'Failure', reason: 'InternalError', message: error.message })))
        socket.close()
      })
      child.once('close', (code) => {
        const causes = [{ reason: 'ExitCode', message: String(code ?? 137) }]
        const failure = { status: 'Failure', reason: 'NonZeroExitCode', message: 'exited', details: { causes } }
        send(3, Buffer.from(JSON.stringify(code === 0 ? { status: 'Success' } : failure)))
        socket.close()
      })
    },
    close() {
      for (const { child } of running.values()) kill(child, 'SIGKILL')
    },
    log(pod: FakePod, query, reply: ServerResponse) {
      const one = running.get(pod.metadata.uid)
      reply.writeHead(200)
      const write = (text: string, index: number): void => {
        const stamp = `2026-01-01T00:00:00.${String(index).padStart(9, '0')}Z`
        for (const line of text.split(/(?<=\n)/)) reply.write(`${stamp} ${line}`)
      }
      let sent = 0
      const sendNew = (): void => {
        for (; sent < (one?.output.length ?? 0); sent += 1) write(one?.output[sent] ?? '', sent)
      }
      sendNew()
      if (query.get('follow') !== 'true' || one === undefined) {
        reply.end()
        return
      }
      const timer = setInterval(sendNew, 10)
      reply.once('close', () => {
        clearInterval(timer)
      })
      void one.ended.then(() => {
        sendNew()
        reply.end()
      })
    },
  }
}

/** The container that a Pod is for: its sandbox, or the server of a volume's files. */
function containerOf(pod: FakePod): Container | undefined {
  return (pod.spec['containers'] as readonly Container[]).find(({ name }) => ['sandbox', 'files'].includes(name))
}

/** The folder of this machine for the first claim of a Pod. */
function folderOfVolume(pod: FakePod, volumes: string): string {
  const mounted = (pod.spec['volumes'] ?? []) as { persistentVolumeClaim?: { claimName: string } }[]
  const claim = mounted.find(({ persistentVolumeClaim }) => persistentVolumeClaim !== undefined)?.persistentVolumeClaim
  const folder = join(volumes, pod.metadata.namespace, claim?.claimName ?? '')
  mkdirSync(folder, { recursive: true })
  return folder
}

function variablesOf(container: Container | undefined): Record<string, string> {
  const own = (container?.env ?? []).map(({ name, value }) => [name, value.replaceAll('$$', '$')])
  return { PATH: process.env['PATH'] ?? '', ...(Object.fromEntries(own) as Record<string, string>) }
}

function kill({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, signal)
  } catch {
    // it has ended
  }
}
