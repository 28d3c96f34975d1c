import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId, type RunId } from '../../../../src/domain/ids.ts'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { Driver, WarmStarts } from '../../../../src/worker/drivers/driver.ts'
import { WARM_MEMORY_MIB } from '../../../../src/worker/drivers/oci/warm-limit.ts'
import type { OciRunRecord } from '../../../../src/worker/drivers/oci/run/run-records.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeSessionPermits } from '../../../../src/worker/channel/session-permits.ts'
import { makeGuest } from '../../../support/container-guest.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { connectAgent } from '../../../support/agent-client.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeEmptyNetworks } from '../../../support/empty-networks.ts'
import { desiredRunWithMounts, tmpfs } from '../../../support/mounts.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { readyIn, warmUp } from '../../../support/warm-up.ts'
import { find } from '../conformance.ts'

const NEVER = new AbortController().signal
const { runtime, network, resources } = DEFAULT_SPEC_FOR_TESTS
const skip = whyNoOci() ?? (testRuntime() === 'crun' ? false : 'only crun has warm sandboxes')

let fixture: OciFixture
let driver: Driver

describe('warm sandboxes of the oci driver', { skip, timeout: 120_000 }, () => {
  beforeEach(async () => {
    fixture = await makeOciFixture()
    driver = await fixture.open({ warm: 4 })
  })
  afterEach(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    await waitUntil(async () => (await fixture.leftovers()).length === 0) // the kernel frees loop devices a moment later
    assert.deepEqual(readdirSync(join(fixture.dir, 'state/runs')), [])
    await fixture.remove()
  })

  test('a run takes one of its shape, and each serves one run', async () => {
    await warmUp(driver, 3)
    const runs = [1, 2, 3, 4].map(() => ({ ...makeDesiredRun(), org_id: asId<OrgId>('another') }))
    const before = startsOf(driver)
    await Promise.all(runs.map((run) => driver.start(run, NEVER)))
    const containers = runs.map((run) => readRecord(run).container_id)
    assert.equal(new Set(containers).size, 4)
    assert.equal(containers.filter((id) => id === undefined).length, 1)
    assert.deepEqual(startsOf(driver), { ...before, hit: before.hit + 3, miss: before.miss + 1 })
  })

  test('is no run: no list shows it, it holds no disk of a sandbox, and the log of no sandbox has a line of it', async () => {
    await warmUp(driver, 2)
    assert.deepEqual(await driver.list(), [])
    assert.deepEqual(await driver.listStored(), [])
    assert.deepEqual(await driver.measureDisks(), [])
  })

  test('serves commands, limits, a stop, a kill and the end of its run like any other', async () => {
    await warmUp(driver, 1)
    const desired = await startWarm({ resources: { ...resources, vcpus: 2 } })
    assert.match(readFileSync(`${fixture.cpuCgroupOf(desired.run_id)}/cpu.cfs_quota_us`, 'utf8'), /^200000\s/)
    assert.equal((await fixture.exec(desired.run_id, ['hostname'])).stdout, 'brave-otter\n')
    await driver.openChannel(desired.run_id)
    const container = fixture.container(desired.run_id)
    assert.equal(container.orgId, desired.org_id)
    const log = makeLog('silent')
    const launcher = makeLauncher(log)
    const sessions = makeSessionPermits({ perSandbox: 8, perOrg: 8, total: 8 })
    const client = connectAgent(makeGuest(container, { log, launcher, sessions, pty: null }))
    const { code, stdout } = await client.finish(client.exec({ cmd: 'id', args: ['-u'] }))
    assert.deepEqual({ code, stdout }, { code: 0, stdout: '0\n' })
    await client.hangUp()
    launcher.close()
    await driver.stop(desired.run_id, 1000)
    assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'stopped' })
    assert.deepEqual(await fixture.leftovers(), [])
    const killed = await startWarm()
    process.kill(readRecord(killed).started?.init?.pid ?? 0, 'SIGKILL')
    await waitUntil(async () => (await find(driver, killed.run_id))?.phase === 'ended')
    assert.deepEqual((await find(driver, killed.run_id))?.outcome, { kind: 'signalled', signal: 'SIGKILL' })
  })

  test('its disk is the sandbox’s: the next start finds the files', async () => {
    await warmUp(driver, 1)
    const desired = await startWarm()
    assert.equal((await fixture.exec(desired.run_id, ['sh', '-c', 'echo kept > /root/file'])).code, 0)
    await driver.remove(desired.run_id)
    assert.deepEqual(await driver.listStored(), [desired.sandbox_id])
    const again = makeDesiredRun({}, desired.sandbox_id)
    await driver.start(again, NEVER)
    assert.equal(readRecord(again).container_id, undefined)
    assert.equal((await fixture.exec(again.run_id, ['cat', '/root/file'])).stdout, 'kept\n')
  })

  test('a run that asks for anything else gets a container of its own', async () => {
    await warmUp(driver, 1)
    const others: Partial<SandboxSpec>[] = [
      { runtime: { ...runtime, cmd: ['sleep', '100'] } },
      { runtime: { ...runtime, user: 'alice' } },
      { runtime: { ...runtime, workdir: '/home' } },
      { image: 'local/other' },
      { env: [{ key: 'A', value: 'b' }] },
      { resources: { ...resources, memory_mib: 300 } },
      { resources: { ...resources, disk_size_mib: 64 } },
      { rlimits: [{ resource: 'nofile', soft: 100, hard: 100 }] },
      { patches: [{ type: 'mkdir', path: '/made', mode: null }] },
      { security_profile: 'restricted' },
      { network: { ...network, max_connections: 7 } },
      { network: { ...network, strict: true } },
    ]
    for (const spec of others) await startPlain(makeDesiredRun(spec))
    await startPlain(desiredRunWithMounts([tmpfs('/scratch')]))
    await startPlain({ ...makeDesiredRun(), network_ranges: { deny: ['10.0.0.0/8'], allow: [] } })
    await startPlain({ ...makeDesiredRun(), default_disk_max_mib: 100 })
    assert.equal(startsOf(driver).hit, 0)
  })

  test('a run whose image was replaced meanwhile gets a container of its own, with the new image', async () => {
    await driver.close()
    let digest = 'old'
    const images = {
      resolve: (reference: string) =>
        Promise.resolve({ reference, digest, config: fixture.image.config, layers: [fixture.layer] }),
      list: () => Promise.resolve([]),
    }
    driver = await fixture.open({ warm: 4 }, { images })
    await warmUp(driver, 1)
    digest = 'new'
    const desired = makeDesiredRun()
    await driver.start(desired, NEVER)
    assert.equal(readRecord(desired).container_id, undefined)
    assert.equal((await find(driver, desired.run_id))?.facts?.['image_digest'], 'new')
    assert.equal((await fixture.exec(desired.run_id, ['hostname'])).stdout, 'brave-otter\n')
  })

  test('one that has died is not taken, and another takes its place', async () => {
    await warmUp(driver, 1)
    const [id = ''] = readdirSync(join(fixture.dir, 'state/runs'))
    process.kill(Number(readFileSync(join(fixture.dir, 'state/runs', id, 'pid'), 'utf8')), 'SIGKILL')
    await waitUntil(() => existsSync(join(fixture.dir, 'state/exits', id)))
    await startPlain(makeDesiredRun())
    await waitUntil(() => !existsSync(join(fixture.dir, 'state/runs', id)) && readyIn(driver) >= 1)
    await startWarm()
  })

  test('a start that fails or is cancelled after it was taken leaves nothing behind', async () => {
    await driver.close()
    let isBroken = false
    const networks = makeEmptyNetworks(`sy${fixture.dir.slice(-6)}-`)
    const attach: typeof networks.attach = (...given) =>
      isBroken ? Promise.reject(new Error('broken')) : networks.attach(...given)
    driver = await fixture.open({ warm: 4 }, { networks: { ...networks, attach } })
    await warmUp(driver, 2)
    isBroken = true
    const desired = makeDesiredRun()
    await assert.rejects(driver.start(desired, NEVER), StartError)
    assert.notEqual(readRecord(desired).container_id, undefined)
    assert.equal((await find(driver, desired.run_id))?.outcome?.kind, 'start_failed')
    assert.deepEqual(await driver.listStored(), [])
    assert.deepEqual(await fixture.leftovers(), [])
    isBroken = false
    const cancelled = makeDesiredRun()
    const cancel = new AbortController()
    const start = driver.start(cancelled, cancel.signal)
    cancel.abort()
    await assert.rejects(start, StartError)
    assert.deepEqual(await fixture.leftovers(), [])
    await networks.detach(asId<RunId>('none'))
  })

  test('counts in the capacity of the machine, and none is kept with the setting 0', async () => {
    const { capacity } = await driver.probe()
    await driver.close()
    driver = await fixture.open({ warm: 0 })
    assert.equal((await driver.probe()).capacity.memory_mib, capacity.memory_mib + 4 * WARM_MEMORY_MIB)
    for (let n = 0; n < 2; n++) await driver.start(makeDesiredRun(), NEVER)
    assert.deepEqual(startsOf(driver), { hit: 0, miss: 0, unsuited: 0 })
    assert.equal(readyIn(driver), 0)
  })

  async function startWarm(spec: Partial<SandboxSpec> = {}): Promise<DesiredRun> {
    await waitUntil(() => readyIn(driver) > 0)
    const desired = makeDesiredRun(spec)
    await driver.start(desired, NEVER)
    assert.notEqual(readRecord(desired).container_id, undefined)
    return desired
  }
  async function startPlain(desired: DesiredRun): Promise<void> {
    await driver.start(desired, NEVER)
    assert.equal(readRecord(desired).container_id, undefined, JSON.stringify(desired.spec))
    await driver.remove(desired.run_id)
  }
})

function startsOf({ warmStarts }: Driver): WarmStarts {
  return warmStarts?.() ?? { hit: 0, miss: 0, unsuited: 0 }
}

function readRecord(desired: DesiredRun): OciRunRecord {
  return JSON.parse(readFileSync(join(fixture.dir, 'state/runs', desired.run_id, 'state.json'), 'utf8')) as OciRunRecord // the driver's own file
}
