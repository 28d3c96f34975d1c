import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { tryCommand } from '../../src/lib/run-command.ts'
import { runMsb } from '../support/msb.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'

// Newer public clients in other languages than the npm SDK's. `npm run test:clients` installs them.

const WALK_LIMIT_MS = 180_000
const PYTHON = process.env['SANDYARD_TEST_PYTHON']
const RUST_WALK = process.env['SANDYARD_TEST_RUST_WALK']

/** Returns the reason why a client is not tested in this run, or false. For `{ skip }`. */
function whyNot(program: string | undefined): string | false {
  const installed =
    program === undefined ? '`npm run test:clients` runs it, because it fetches and builds the client' : false
  return installed || whyNoServer()
}

describe('the walk through the API by newer clients', { skip: whyNot(PYTHON ?? RUST_WALK) }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer()
  })
  after(() => server.close())

  async function walk(program: string, args: readonly string[]): Promise<void> {
    const { code, stdout, stderr } = await tryCommand(program, args, {
      timeoutMs: WALK_LIMIT_MS * TIMEOUT_FACTOR,
      env: { ...process.env, ...server.clientEnv },
    })
    assert.equal(code, 0, `${stdout}\n${stderr}`)
    assert.match(stdout, /^ok - /)
    assert.doesNotMatch(stdout, /^not ok/m)
  }

  test('the Python SDK 0.7.11 creates, commands, streams, mounts, stops and removes', { skip: whyNot(PYTHON) }, () =>
    walk(PYTHON ?? '', [join(import.meta.dirname, 'walk_python.py')]),
  )

  test(
    'msb 0.7.11 makes, lists, restores and removes a snapshot',
    { skip: whyNot(process.env['SANDYARD_TEST_MSB']) },
    async () => {
      const msb = async (...args: string[]): Promise<string> => {
        const { code, stdout, stderr } = await runMsb(server, args)
        assert.equal(code, 0, `${args.join(' ')}: ${stdout}\n${stderr}`)
        return stdout
      }
      await msb('create', 'localhost/demo', '--name', 'origin', '--memory', '128M')
      await msb('exec', 'origin', '--', 'sh', '-c', 'echo kept > /root/kept')
      await msb('snapshot', 'create', 'by-msb', '--sandbox', 'origin', '--label', 'team=ml')
      assert.match(await msb('snapshot', 'ls'), /^by-msb +disk /m)
      assert.match(await msb('snapshot', 'inspect', 'by-msb'), /Source Sandbox: +origin/)
      await msb('snapshot', 'restore', 'by-msb', '--name', 'again')
      assert.equal(await msb('exec', 'again', '--', 'cat', '/root/kept'), 'kept\n')
      await msb('snapshot', 'rm', 'by-msb')
      assert.doesNotMatch(await msb('snapshot', 'ls'), /by-msb/)
    },
  )

  test('the Rust SDK 0.7.13 creates, commands, streams, mounts, stops and removes', { skip: whyNot(RUST_WALK) }, () =>
    walk(RUST_WALK ?? '', []),
  )
})
