/** A workload whose program can't be executed fails its start, and the message names the program and the reason. */
import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { find, until } from '../conformance.ts'

const NEVER = new AbortController().signal
/** Offsets in an ELF header (elf(5)). */
const MACHINE_AT = 18
const RISCV = 243
let fixture: OciFixture
let driver: Driver

describe('a workload that the kernel can’t execute', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    const bin = join(fixture.layer, 'usr/bin')
    const elf = readFileSync(join(bin, 'true'))
    const loader = elf.indexOf('/lib64/ld-')
    assert.ok(loader > 0)
    const put = (name: string, content: string | Buffer, mode = 0o755): void => {
      writeFileSync(join(bin, name), content)
      chmodSync(join(bin, name), mode)
    }
    const foreign = Buffer.from(elf)
    foreign.writeUInt16LE(RISCV, MACHINE_AT)
    put('foreign', foreign)
    const unloadable = Buffer.from(elf)
    unloadable.write('/gone', loader)
    put('unloadable', unloadable)
    put('script', '#!/opt/python3 -u\nprint(1)\n')
    put('text', 'exit 7\n')
    put('plain', '#!/usr/bin/sh\n', 0o644)
    mkdirSync(join(bin, 'folder'))
    driver = await fixture.open()
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  const CASES: readonly (readonly [cmd: string, message: RegExp])[] = [
    ['no-such-program', /^the program 'no-such-program' was not found in the sandbox's PATH \(.*\/usr\/bin:\/bin\)$/],
    ['/opt/none', /^the program '\/opt\/none' was not found in the sandbox$/],
    ['foreign', /^the program 'foreign' is built for riscv64, but this machine's processor is x64$/],
    ['unloadable', /^the program 'unloadable' needs the loader '\/gone.*', which was not found in the sandbox$/],
    ['script', /^the program 'script' needs the interpreter '\/opt\/python3', which was not found in the sandbox$/],
    ['plain', /^the program 'plain' is not executable by user 0$/],
    ['/usr/bin/folder', /^the program '\/usr\/bin\/folder' is a folder$/],
  ]
  for (const [cmd, message] of CASES) {
    test(`fails its start with a reason: ${cmd}`, { skip: cmd === 'foreign' && process.arch !== 'x64' }, async () => {
      await assert.rejects(driver.start(makeDesiredRun(workload([cmd, 'argument'])), NEVER), (error) => {
        assert.ok(error instanceof StartError, String(error))
        assert.equal(error.reason, 'config')
        assert.match(error.message, message)
        return true
      })
    })
  }

  test('may be a text without #!, which /bin/sh executes', async () => {
    const desired = makeDesiredRun(workload(['text']))
    await driver.start(desired, NEVER)
    await until(async () => (await find(driver, desired.run_id))?.phase === 'ended')
    assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'exited', code: 7 })
  })

  test('is not judged on the host if the program may be in a mount', async () => {
    const mounts: SandboxSpec['mounts'] = [
      {
        type: 'tmpfs',
        guest: '/opt',
        options: { readonly: false, noexec: false, nosuid: true, nodev: true },
        size_mib: 1,
      },
    ]
    const desired = makeDesiredRun({ ...workload(['/opt/none']), mounts })
    await driver.start(desired, NEVER)
    await driver.stop(desired.run_id, 0)
  })
})

function workload(cmd: readonly string[]): Partial<SandboxSpec> {
  return { runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd } }
}
