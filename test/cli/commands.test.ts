import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { describeFolderError } from '../../src/cli/server/data-folder.ts'
import { storeProof } from '../../src/worker/drivers/kubernetes/network/stored-proof.ts'
import { runProgram } from '../support/program.ts'
import { PROGRAM } from '../support/program-file.ts'

// What every command does, whatever its subject: versions, help, folders that it must not make, and pipes that close.

let root: string
before(() => {
  root = mkdtempSync(join(tmpdir(), 'sandyard-commands-'))
})
after(() => {
  rmSync(root, { recursive: true })
})

test('--version prints the version of package.json', async () => {
  const manifest = readFileSync(join(import.meta.dirname, '../../package.json'), 'utf8')
  const { code, output } = await runProgram(['--version'], {})
  assert.equal(code, 0)
  assert.ok(manifest.includes(`"version": "${output.trim()}"`), output)
})

test('an unknown command says which one was meant, also beneath a command that runs by itself', async () => {
  for (const [words, meant] of [
    [['upp'], /Did you mean up\?/],
    [['worker', 'lits'], /worker token, list/],
  ] as const) {
    const { code, output } = await runProgram(words, { SANDYARD_DATA_DIR: join(root, 'none') })
    assert.equal(code, 2, output)
    assert.match(output, meant)
  }
})

test('settings that contradict each other stop a start with exit code 2, before it makes a data folder', async () => {
  const refused = [
    [['up'], { SANDYARD_TLS_CERT: '/cert.pem' }, /SANDYARD_TLS_CERT and SANDYARD_TLS_KEY belong together/],
    [['serve'], { SANDYARD_OIDC_CLIENT_ID: 'sandyard' }, /SANDYARD_OIDC_ISSUER and SANDYARD_OIDC_CLIENT_ID belong/],
    [['worker'], { SANDYARD_DISK_MIB: '1048576' }, /SANDYARD_DISK_MAX_MIB, which is 65536/],
  ] as const
  for (const [words, settings, message] of refused) {
    const dataDir = join(root, 'contradicting')
    const { code, output } = await runProgram([...words], {
      SANDYARD_PORT: '0',
      SANDYARD_DATA_DIR: dataDir,
      ...settings,
    })
    assert.match(output, message)
    assert.equal(code, 2, output)
    assert.ok(!existsSync(dataDir))
  }
})

test('no command that reads makes a data folder, and each says what to do', async () => {
  const dataDir = join(root, 'none')
  const commands = ['key list', 'org list', 'worker list', 'registry list', 'member list', 'quota show', 'plan list']
  for (const line of commands) {
    const { code, output } = await runProgram(line.split(' '), { SANDYARD_DATA_DIR: dataDir })
    assert.equal(code, 2, `${line}: ${output}`)
    assert.match(output, /has no database: start the server there once, or name .*--data-dir/, line)
    assert.ok(!existsSync(dataDir), line)
  }
  for (const line of ['image list', 'image prune', 'down', 'doctor']) {
    const { code, output } = await runProgram(line.split(' '), { SANDYARD_DATA_DIR: dataDir })
    if (line !== 'doctor') assert.equal(code, 0, `${line}: ${output}`)
    assert.ok(!existsSync(dataDir), line)
  }
})

test('doctor says what the worker last found out about the policies of its cluster, and when', async () => {
  const dir = join(root, 'worker/kubernetes')
  const look = async (settings: Record<string, string> = {}): Promise<string> => {
    const given = { SANDYARD_DATA_DIR: join(root, 'worker'), SANDYARD_DRIVER: 'kubernetes', ...settings }
    return /^.* pod network .*$/m.exec((await runProgram(['doctor'], given)).output)?.[0] ?? 'nothing'
  }
  assert.match(await look(), /^ok .* is not proved yet: the worker tries it when it starts/)
  assert.match(await look({ SANDYARD_KUBERNETES_NETWORK: 'cluster' }), /^ok .*the cluster alone decides/)
  mkdirSync(dir, { recursive: true })
  const now = new Date('2026-11-26T12:00:00Z')
  await storeProof({ dir, network: 'prove' }, { kind: 'open', seen: 'a connection was accepted' }, now)
  assert.match(await look(), /^MISSING .*did not enforce .* at 2026-11-26T12:00:00.000Z: a connection was accepted$/)
  await storeProof({ dir, network: 'prove' }, { kind: 'enforced' }, now)
  assert.match(await look(), /^ok .*enforced NetworkPolicies .* at 2026-11-26T12:00:00.000Z$/)
})

test('a misspelt setting ends a command with exit code 2, and a server lists other variables without effect', async () => {
  const dataDir = join(root, 'misspelt')
  const settings = { SANDYARD_DATA_DIR: dataDir, SANDYARD_PORT: '0', SANDYARD_HOME: '/opt' }
  const refused = await runProgram(['up'], { ...settings, SANDYARD_REQUIRE_ISOLATON: 'microvm' })
  assert.equal(refused.code, 2, refused.output)
  assert.match(refused.output, /SANDYARD_REQUIRE_ISOLATON is no setting; did you mean SANDYARD_REQUIRE_ISOLATION\?/)
  assert.ok(!existsSync(dataDir))
  const { output } = await runProgram(['serve'], { ...settings, DATABASE_URL: 'postgres://a:b@127.0.0.1:1/x' })
  assert.match(output, /no settings, and without effect: SANDYARD_HOME; `sandyard --help` lists the settings/)
})

test('up refuses to drain, which only a worker of its own does, before it makes a data folder', async () => {
  const dataDir = join(root, 'drained')
  for (const [flags, variables] of [
    [['--shutdown', 'drain'], {}],
    [[], { SANDYARD_SHUTDOWN: 'drain' }],
  ] as const) {
    const { code, output } = await runProgram(['up', '--port', '0', ...flags], {
      SANDYARD_DATA_DIR: dataDir,
      ...variables,
    })
    assert.equal(code, 2, output)
    assert.match(output, /"drain", which only `sandyard worker` does; accepted by `sandyard up`: keep, stop/)
    assert.ok(!existsSync(dataDir))
  }
})

test('up and worker refuse what would leave them without a worker, before they make a data folder', async () => {
  const dataDir = join(root, 'unable')
  const reserve = { SANDYARD_HOST_RESERVE_MIB: '16777216' }
  const refused = [
    [['up'], reserve, /SANDYARD_HOST_RESERVE_MIB is 16777216; accepted: less than the machine's memory, \d+ MiB/],
    [['worker', '--join', 'http://127.0.0.1:9'], reserve, /SANDYARD_HOST_RESERVE_MIB is 16777216; accepted: less than/],
  ] as const
  for (const [words, settings, message] of refused) {
    const { code, output } = await runProgram(words, { SANDYARD_PORT: '0', SANDYARD_DATA_DIR: dataDir, ...settings })
    assert.match(output, message)
    assert.equal(code, 2, output)
    assert.ok(!existsSync(dataDir))
  }
})

test('image remove fails for an image that is not there', async () => {
  const { code, output } = await runProgram(['image', 'remove', 'nosuch'], { SANDYARD_DATA_DIR: join(root, 'none') })
  assert.equal(code, 1, output)
  assert.match(output, /there is no image 'nosuch' here/)
})

test('a command whose output is closed by `head` ends quietly', () => {
  const line = '"$0" "$1" openapi | head -n 1; echo "${PIPESTATUS[0]}"'
  const { stdout, stderr } = spawnSync('bash', ['-c', line, process.execPath, PROGRAM], { encoding: 'utf8' })
  assert.equal(stderr, '')
  assert.match(stdout, /^\{\n0\n$/)
})

test('an error about the data folder names the remedy', async () => {
  const file = join(root, 'file')
  writeFileSync(file, '')
  for (const dataDir of [file, join(file, 'beneath')]) {
    const { code, output } = await runProgram(['serve', '--port', '0'], { SANDYARD_DATA_DIR: dataDir })
    assert.equal(code, 1, output)
    assert.match(output, /can't be used: .* file: choose another folder with --data-dir/)
  }
  const link = join(root, 'link')
  symlinkSync(join(root, 'unmounted/data'), link)
  for (const dataDir of [link, join(link, 'beneath')]) {
    const { code, output } = await runProgram(['serve', '--port', '0'], { SANDYARD_DATA_DIR: dataDir })
    assert.equal(code, 1, output)
    assert.match(output, /can't be used: .*link .*leads nowhere.*: .*choose another folder with --data-dir/)
  }
  for (const dataDir of ['/proc/sandyard', '/proc/sandyard/beneath']) {
    const { code, output } = await runProgram(['serve', '--port', '0'], { SANDYARD_DATA_DIR: dataDir })
    assert.equal(code, 1, output)
    assert.match(output, /can't be used: .*its file system takes no folders.*: .*choose another folder with --data-dir/)
  }
  const remedies = { EACCES: /root/, EROFS: /read-only/, ENOSPC: /full: free some space/ }
  for (const [code, remedy] of Object.entries(remedies)) {
    const { message } = describeFolderError(Object.assign(new Error('no'), { code }), '/srv/x')
    assert.match(message, /^the data folder \/srv\/x can't be used/)
    assert.match(message, remedy)
  }
})
