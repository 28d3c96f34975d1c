/**
 * Measures the memory of a worker with the driver `kubernetes` that holds a thousand sandboxes, over the tests' fake of the API in another
 * process. Prints the result as JSON. `bench/kubernetes.ts` starts it with `--expose-gc`.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ClusterAccess } from '../../src/worker/kubernetes/cluster-access.ts'
import { makeDesiredRun } from '../../test/support/desired-run.ts'
import { openKubernetesDriver } from '../../test/support/kubernetes-driver.ts'
import { POD_SPEC } from '../../test/worker/drivers/kubernetes-conformance.ts'
import { pause } from './pause.ts'
import { readProcessMemory } from './process-memory.ts'

/** The memory (PSS) for each sandbox, with an open stream to its agent. */
export type HeldSandboxes = { readonly count: number; readonly kibEach: number }

const NEVER = new AbortController().signal
const COUNT = 1_000
const AT_ONCE = 20
/** The first sandboxes load code. They are not counted. */
const WARM_UP = 50

const child = spawn(process.execPath, [join(import.meta.dirname, 'silent-cluster.ts')], {
  stdio: ['pipe', 'pipe', 'inherit'],
})
const [line] = (await once(child.stdout, 'data')) as [Buffer]
const given = JSON.parse(line.toString('utf8')) as Omit<ClusterAccess, 'readToken'> // functions are not in JSON
const access: ClusterAccess = { ...given, readToken: () => Promise.resolve('token-of-the-test') }
const dir = await mkdtemp(join(tmpdir(), 'sandyard-held-'))
const open = () => openKubernetesDriver({ dir, access, helperImage: 'localhost/helper:1' })

const measureMib = async (): Promise<number> => {
  for (let round = 0; round < 3; round++) {
    globalThis.gc?.()
    await pause(200)
  }
  return (await readProcessMemory(process.pid)).pssMib
}
const driver = await open()
const start = async (count: number): Promise<void> => {
  let left = count
  const one = async (): Promise<void> => {
    while (left-- > 0) await driver.start(makeDesiredRun(POD_SPEC), NEVER)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, one))
}
await start(WARM_UP)
const beforeMib = await measureMib()
await start(COUNT)
const heldMib = await measureMib()
const result: HeldSandboxes = { count: COUNT, kibEach: ((heldMib - beforeMib) * 1024) / COUNT }
await driver.close()
child.stdin.end()
await rm(dir, { recursive: true })
process.stdout.write(`${JSON.stringify(result)}\n`)
process.exit(0)
