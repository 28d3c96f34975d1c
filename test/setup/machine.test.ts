import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { ROOT } from '../support/documents.ts'
import { isRunning, sendSignal } from '../support/process-tree.ts'
import { waitUntil } from '../support/wait.ts'

// The machines in which `npm run test:kubernetes` and `npm run test:nomad` start engines.

const owners: ChildProcess[] = []
const skip = process.platform !== 'linux' || process.getuid?.() !== 0 ? 'only root makes namespaces' : false

test(
  'a machine whose owner is killed leaves no process, and the next one removes its folder',
  { skip, timeout: 120_000 },
  async (t) => {
    const engine = mkdtempSync(join(tmpdir(), 'sandyard-no-engine-'))
    t.after(() => {
      for (const owner of owners) owner.kill('SIGKILL')
      rmSync(engine, { recursive: true })
    })
    const first = await startOwner(engine)
    const file = join(first.folder, 'parts/sleeper.pid')
    const part = await waitUntil(() => existsSync(file) && Number(readFileSync(file, 'utf8')))
    assert.ok(isRunning(part), 'the process id is as this machine counts')
    assert.notEqual(networkOf(part), networkOf(process.pid))
    sendSignal(first.pid, 'SIGKILL')
    await waitUntil(() => !isRunning(part))
    const second = await startOwner(engine)
    assert.ok(!existsSync(first.folder))
    sendSignal(second.pid, 'SIGTERM')
    await waitUntil(() => !existsSync(second.folder))
  },
)

/** Starts a process that starts a machine with one part, and ends the machine at SIGTERM. */
async function startOwner(engine: string): Promise<{ readonly pid: number; readonly folder: string }> {
  const script = `
    const { startMachine } = await import('${join(ROOT, 'setup/engines/machine.mjs')}')
    const machine = await startMachine('${engine}')
    process.once('SIGTERM', async () => { await machine.close(); process.exit() })
    machine.part('sleeper', 'exec sleep 600')
    console.log(machine.folder)
    setInterval(() => undefined, 1000)`
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  owners.push(child)
  const [text] = (await once(child.stdout, 'data')) as [Buffer]
  child.unref()
  child.stdout.destroy()
  return { pid: child.pid ?? assert.fail('no process'), folder: text.toString().trim() }
}

function networkOf(pid: number): string {
  return readlinkSync(`/proc/${String(pid)}/ns/net`)
}
