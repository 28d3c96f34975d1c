import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { runProgram } from '../support/program.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The operator's commands against a real server with real sandboxes.

type UsedSandbox = {
  readonly name: string
  readonly latest: { readonly used_vcpus: number; readonly memory_bytes: number; readonly processes: number }
}

describe('the operator’s view', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer()
  })
  after(() => server.close())

  const settings = () => ({ SANDYARD_DATA_DIR: server.dataDir })
  const operate = async (...args: readonly string[]): Promise<string> => {
    const { code, output } = await runProgram(args, settings())
    assert.equal(code, 0, output)
    return output
  }
  async function run(name: string, script: string): Promise<string> {
    const { code, stderr } = await runMsb(server, ['run', '-d', '--name', name, DEMO_IMAGE, '--', 'sh', '-c', script])
    assert.equal(code, 0, stderr)
    return (await mustCall(server, 'get_sandbox_by_name', { params: { name } })).id
  }

  test('ps, inspect, why and events show a real sandbox', async () => {
    await run('seen', 'exec sleep 600')
    assert.match(await operate('ps'), /default\tseen\t\S+\t\S+\trunning\tlocal\t\d+s ago\t/)
    assert.match(await operate('inspect', 'seen'), /isolation +container\n/)
    assert.match(await operate('why', 'seen'), /is running on the worker 'local'\.\nsince /)
    assert.match(await operate('events', '--sandbox', 'seen'), /\tsandbox_running\t/)
  })

  test('top shows what containers use, the busiest first', async () => {
    await run('busy', 'while :; do :; done')
    await run('asleep', 'exec sleep 600')
    await waitUntil(async () => !(await operate('top', '--once')).includes('- of'), 30_000) // all were sampled
    const lines = (await operate('top', '--json')).trimEnd().split('\n')
    const used = lines.map((line): UsedSandbox => JSON.parse(line))
    const [first] = used
    const asleep = used.find(({ name }) => name === 'asleep')
    assert.ok(first !== undefined && asleep !== undefined)
    assert.equal(first.name, 'busy')
    assert.ok(first.latest.used_vcpus > 0.05 && first.latest.used_vcpus > 5 * asleep.latest.used_vcpus, lines.join())
    assert.ok(asleep.latest.memory_bytes > 0 && asleep.latest.processes >= 1, lines.join())
    assert.match(
      await operate('top', '--sort', 'memory', '--limit', '1'),
      /^ORG\t.*\n\S+\t.* of 1\t\d+ [KM]iB of \d+ MiB\t.*\t\d+\n$/,
    )
    const { code, stderr } = await runMsb(server, ['stop', 'busy'])
    assert.equal(code, 0, stderr)
  })

  test('logs prints the latest lines of any sandbox, follows it to its end, and leaves no valid key', async () => {
    await run(
      'talks',
      'for n in 1 2 3; do echo "line $n"; done; while [ ! -e /tmp/end ]; do sleep 0.1; done; echo last',
    )
    await waitUntil(async () => (await operate('logs', 'talks')).includes('line 3\n'), 30_000)
    assert.equal(await operate('logs', 'talks', '--tail', '2'), 'line 2\nline 3\n')
    const [first] = (await operate('logs', 'talks', '--json')).split('\n')
    assert.deepEqual([JSON.parse(first ?? '').source, JSON.parse(first ?? '').text], ['stdout', 'line 1\n'])

    assert.match(await operate('logs', 'talks', '--system'), /^\[sandyard\] image /)
    const followed = spawnProgram(['logs', 'talks', '--follow'], settings())
    let said = ''
    followed.stdout?.setEncoding('utf8').on('data', (text: string) => {
      said += text
    })
    const ended = once(followed, 'exit')
    await waitUntil(() => said.includes('line 3\n'), 30_000)
    const { code, stderr } = await runMsb(server, ['exec', 'talks', '--', 'touch', '/tmp/end'])
    assert.equal(code, 0, stderr)
    await ended
    assert.deepEqual([followed.exitCode, said], [0, 'line 1\nline 2\nline 3\nlast\n'])

    const keys = (await operate('key', 'list', '--all'))
      .split('\n')
      .filter((line) => line.includes('\tsandyard logs\t'))
    assert.ok(keys.length > 0 && keys.every((line) => /\tread\t.*\t20\S+$/.test(line)), keys.join('\n')) // revoked
    assert.match(
      await operate('events', '--actor', 'operator'),
      /api_key_created\tthe sandyard command\tname="sandyard logs" scopes=\["read"\]/,
    )
  })

  test('an interrupted logs revokes its key, and without a server it says so', async () => {
    await run('quiet', 'echo begun; exec sleep 600')
    const followed = spawnProgram(['logs', 'quiet', '--follow'], settings())
    let said = ''
    followed.stdout?.setEncoding('utf8').on('data', (text: string) => {
      said += text
    })
    await waitUntil(() => said.includes('begun'), 30_000)
    followed.kill('SIGINT')
    await once(followed, 'exit')
    assert.equal(followed.exitCode, 130)
    assert.ok(
      (await operate('key', 'list'))
        .split('\n')
        .filter((line) => line.includes('sandyard logs'))
        .every((line) => /\t20\S+$/.test(line)),
    )
    await server.stop()
    const { code, output } = await runProgram(['logs', 'quiet'], settings())
    assert.equal(code, 1)
    assert.match(output, /no server runs on this database/)
    await server.start()
  })
})
