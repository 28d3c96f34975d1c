import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { makeToolbox } from '../../../../src/worker/drivers/oci/rootfs/toolbox.ts'
import { toolCommand } from '../../../../src/contract/workers/guest-tools.ts'

const skip = process.platform === 'linux' ? false : 'needs Linux'

/** A Perl program that compiles a script with all its modules, and doesn't run it. */
const COMPILE =
  'BEGIN { @INC = shift } open my $in, "<", shift or die; local $/; my $text = <$in>; eval "return 1; $text" or die $@;'

function makeParent(t: TestContext): string {
  const parent = mkdtempSync(join(tmpdir(), 'sandyard-toolbox-'))
  t.after(() => {
    rmSync(parent, { recursive: true, force: true })
  })
  return parent
}

test('a toolbox runs its scripts without any program, library or module of the machine', { skip }, async (t) => {
  const toolbox = await makeToolbox(makeParent(t))
  const [file = '', ...args] = toolCommand('files.pl', [], toolbox)
  const traced = spawnSync(file, ['--list', ...args.slice(0, 3)], { encoding: 'utf8', env: {} })
  const libraries = traced.stdout.split('\n').filter((line) => line.includes('=>'))
  assert.ok(libraries.length > 0, traced.stderr)
  for (const line of libraries) assert.ok(line.includes(toolbox), line)
  for (const script of ['files.pl', 'listen.pl', 'tcp.pl'] as const) {
    const compiled = `${COMPILE} print join "\\n", values %INC`
    const command = toolCommand(script, [], toolbox).map((word) => (word.startsWith('BEGIN') ? compiled : word))
    const seen = spawnSync(command[0] ?? '', command.slice(1), { encoding: 'utf8', env: {}, input: '' })
    assert.equal(seen.status, 0, seen.stderr)
    for (const path of seen.stdout.split('\n')) assert.ok(path.startsWith(toolbox), path)
  }
})

test(
  'a toolbox is made once, is readable by everyone, and replaces one that was left half made',
  { skip },
  async (t) => {
    const parent = makeParent(t)
    mkdirSync(join(parent, 'unfinished-x'))
    const first = await makeToolbox(parent)
    const made = statSync(first).ino
    assert.equal(await makeToolbox(parent), first)
    assert.equal(statSync(first).ino, made)
    assert.deepEqual(readdirSync(parent).length, 1)
    for (const name of readdirSync(first, { recursive: true, encoding: 'utf8' })) {
      const { mode } = statSync(join(first, name))
      assert.equal(mode & 0o044, 0o044, name)
      assert.equal(mode & 0o022, 0, name)
    }
    assert.ok(existsSync(join(first, 'files.pl')))
  },
)
