import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { authenticate } from '../../src/control/orgs/authenticate.ts'
import { openSshHostKey } from '../../src/control/orgs/ssh-entries.ts'
import { listEvents } from '../../src/control/events/read-events.ts'
import { OPERATOR_ACTOR } from '../../src/domain/orgs/caller.ts'
import { parseDurationMs } from '../../src/domain/duration.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { addOrg } from '../support/orgs.ts'
import { spawnProgram } from '../support/server.ts'
import { makeSshKey } from '../support/ssh-keys.ts'
import { listenForWebhooks } from '../support/webhook-receiver.ts'

// The `sandyard` program as an operator calls it, on a database of its own.

const UNKNOWN_ID = '01a00000-0000-7000-8000-000000000000'
const PASSWORD = 'hunter2-from-standard-input'
let control: TestControl
const dataDir = mkdtempSync(join(tmpdir(), 'sandyard-cli-'))
let said = ''
before(async () => {
  control = await makeTestControl()
})
after(async () => {
  await control.close()
  rmSync(dataDir, { recursive: true, force: true })
})

type Outcome = { readonly code: number | null; readonly out: string; readonly err: string }

async function sandyard(line: string, input = ''): Promise<Outcome> {
  const settings = {
    SANDYARD_DATA_DIR: dataDir,
    DATABASE_URL: control.databaseUrl,
    SANDYARD_LOG_LEVEL: 'trace',
    SANDYARD_WEBHOOKS_ALLOWED: '127.0.0.2',
  }
  const child = spawnProgram(line.split(' '), settings)
  assert.ok(child.stdout !== null && child.stderr !== null && child.stdin !== null)
  child.stdin.end(input)
  const [out, err] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
  said += out + err
  return { code: child.exitCode, out, err }
}

/** Runs a command, asserts that it succeeds, and returns its output. */
async function printed(line: string, input = ''): Promise<string> {
  const { code, out, err } = await sandyard(line, input)
  assert.equal(code, 0, `${line}: ${err}`)
  return out
}

/** Runs a command, asserts that it is refused, and returns its error message. */
async function refused(line: string, input = ''): Promise<string> {
  const { code, out, err } = await sandyard(line, input)
  assert.notEqual(code, 0, line)
  assert.equal(out, '', line)
  return err
}

test('key create prints a key with the requested scopes and lifetime, and key list and key revoke find the key', async () => {
  const key = (await printed('key create --name ci --scopes read,write --expires-in 30d')).trim()
  const caller = await authenticate(control.deps, key)
  assert.deepEqual([caller?.org_id, caller?.scope], [control.caller.org_id, 'write'])
  assert.ok(caller)
  const row = (await printed('key list')).split('\n').find((line) => line.startsWith(caller.api_key_id)) ?? ''
  const [, name, scopes, created = '', expires = '', , revoked] = row.split('\t')
  assert.deepEqual([name, scopes, revoked], ['ci', 'read,write', '-'])
  assert.equal(Date.parse(expires) - Date.parse(created) < 30 * 86_400_000 + 1_000, true)
  assert.match(await printed(`key revoke ${caller.api_key_id}`), /is revoked/)
  assert.doesNotMatch(await printed('key list'), new RegExp(caller.api_key_id))
  assert.doesNotMatch(await printed('key list --all'), new RegExp(`${caller.api_key_id}.*-\\n`))
  assert.match(await printed('key list --all'), new RegExp(caller.api_key_id))
  assert.match(await refused('key create --scopes all'), /--scopes takes/)
  assert.match(await refused('key create --expires-in 3'), /--expires-in takes/)
  assert.match(await refused('key create --expires-at 2001-01-31T00:00:00Z'), /expires_at .*in the future/)
})

test('members are added, listed, given roles and removed; removing the last owner is refused with the reason', async () => {
  await printed('member add ada@example.org --role admin --name Ada')
  assert.match(await printed('member list'), /^ada@example\.org\tadmin\tAda\t/m)
  await printed('member role ada@example.org owner')
  await printed('member role owner@localhost viewer')
  assert.match(await refused('member role ada@example.org member'), /needs an owner/)
  await printed('member remove owner@localhost')
  assert.match(await refused('member remove owner@localhost'), /is not a member/)
  assert.match(
    await refused('member add a@b.org --role king'),
    /'king' is invalid. Allowed choices are owner, admin, member, viewer/,
  )
})

test('a registry password is read from standard input, stored encrypted and printed nowhere', async () => {
  const login = 'registry login registry.example --username me --password-stdin'
  await printed(login, `${PASSWORD}\n`)
  assert.match(await printed('registry list'), /^registry\.example\tme\t/m)
  assert.match(
    await refused('registry login https://registry.example --username me --password-stdin', PASSWORD),
    /host/,
  )
  await printed('registry logout registry.example')
  assert.match(
    await refused('registry logout registry.example'),
    /not found: .* no such credential; `sandyard registry list` shows all/,
  )
  assert.ok(!said.includes(PASSWORD))
})

test('the events of commands name the operator', async () => {
  const input = { event_type: 'member_added', since: null, until: null, cursor: null, limit: 100 }
  const [latest] = (await listEvents(control.deps, control.caller, input)).items
  assert.deepEqual(latest?.actor, OPERATOR_ACTOR)
})

test('with several organizations a command must name one, and touches no other', async () => {
  const other = await addOrg(control.deps, 'other')
  assert.match(await refused('key create'), /several organizations, so name one by --org: default, other/)
  assert.match(await refused('member list --org nobodys'), /no organization 'nobodys'; there is default, other/)
  const key = (await printed('key create --org other')).trim()
  assert.equal((await authenticate(control.deps, key))?.org_id, other.org_id)
  await printed('member add theirs@example.org --org other')
  assert.doesNotMatch(await printed('member list --org default'), /theirs@/)
  assert.match(
    await refused(`key revoke ${control.caller.api_key_id} --org other`),
    /not found: .* no such key; `sandyard key list --all` shows all/,
  )
})

test('a duration is a whole number with its unit', () => {
  assert.deepEqual(
    ['90m', '12h', '30d', '8w'].map(parseDurationMs),
    [5_400_000, 43_200_000, 2_592_000_000, 4_838_400_000],
  )
  for (const bad of ['', '0d', '30', 'd', '-1d', '1.5h', '1 d', '9999999d', '1y'])
    assert.equal(parseDurationMs(bad), null, bad)
})

test('ssh-key add takes a file or standard input, and ssh-key list and ssh-key remove find the key', async () => {
  const fingerprint = (await printed('ssh-key add laptop - --org default', makeSshKey())).trim().split(' ')[1] ?? ''
  const file = join(dataDir, 'key.pub')
  writeFileSync(file, makeSshKey())
  await printed(`ssh-key add desk ${file} --org default`)
  assert.match(
    await printed('ssh-key list --org default'),
    new RegExp(`laptop\\s+${fingerprint.replaceAll('+', '\\+')}`),
  )
  assert.match(await refused('ssh-key add bad - --org default', 'no key'), /public_key.*OpenSSH public key file/)
  assert.equal(await printed(`ssh-key remove ${fingerprint} --org default`), 'removed laptop\n')
  assert.match(
    await refused(`ssh-key remove ${fingerprint} --org default`),
    /no such SSH key; `sandyard ssh-key list` shows all/,
  )
  assert.doesNotMatch(await printed('ssh-key list --org default'), /laptop/)
})

test('ssh-key host shows the host key, which the first server with SSH makes', async () => {
  assert.match(await refused('ssh-key host'), /no host key yet/)
  const made = { private: 'hidden', public: makeSshKey() }
  await openSshHostKey(control.deps, () => made)
  assert.match(await printed('ssh-key host'), /^SHA256:[A-Za-z0-9+/]{43}\n$/)
  const again = await openSshHostKey(control.deps, () => ({ private: 'other', public: makeSshKey() }))
  assert.deepEqual(again, made, 'every server process gets the same key')
})

test('webhook creates, lists, pauses, rotates, and deletes, and prints each secret once', async () => {
  const made = await printed(
    'webhook create --org default https://hooks.example.com/path --types sandbox_failed --description builds',
  )
  const [, id = '', secret = ''] = /^webhook (\S+)\nsecret (whsec_\S+)\n$/.exec(made) ?? []
  assert.match(await printed('webhook list --org default'), new RegExp(`${id}.*https://hooks.example.com/path.*active`))
  assert.match(await printed(`webhook pause --org default ${id}`), /is paused/)
  assert.match(await printed('webhook list --org default'), /paused \(requested\)/)
  assert.match(
    await printed(`webhook move --org default ${id} https://hooks.example.com/other`),
    /is paused: https:.*other/,
  )
  assert.match(await printed(`webhook resume --org default ${id}`), /is active/)
  assert.match(await printed(`webhook rotate --org default ${id}`), /^secret whsec_\S+\nthe old secret expires /)
  assert.match(await printed(`webhook deliveries --org default ${id}`), /^ID\s/)
  assert.match(await refused('webhook create --org default http://127.0.0.1:1/'), /url: accepted: an https/)
  assert.match(
    await refused('webhook create --org default https://hooks.example.com/ --types nothing'),
    /--types has 'nothing'/,
  )
  assert.match(
    await refused(`webhook deliveries --org default ${id} --status lost`),
    /accepted: waiting, delivered, failed/,
  )
  assert.match(
    await refused(`webhook resend --org default ${id} ${id}`),
    /not found: .* `sandyard webhook deliveries WEBHOOK` shows all/,
  )
  assert.match(
    await refused(`webhook delete --org default ${UNKNOWN_ID}`),
    /no such webhook; `sandyard webhook list` shows all/,
  )
  assert.match(await printed(`webhook delete --org default ${id}`), /is deleted/)
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ row: string }>({ text: 'SELECT t::text AS row FROM events t' }),
  )
  assert.ok(!JSON.stringify(rows).includes(secret))
})

test('webhook test prints the reply of the endpoint, and fails if it is no success', async () => {
  let status = 202
  const receiver = await listenForWebhooks(() => ({ status }), '127.0.0.2')
  const url = `${receiver.url.replace('127.0.0.1', '127.0.0.2')}/cli`
  const made = await printed(`webhook create --org default ${url}`)
  const [, id = '', secret = ''] = /^webhook (\S+)\nsecret (whsec_\S+)\n$/.exec(made) ?? []
  receiver.secrets.set('/cli', [secret])
  assert.match(await printed(`webhook test --org default ${id}`), /^delivered: status 202 after \d+ ms\n$/)
  status = 404
  assert.match(await refused(`webhook test --org default ${id}`), /was not delivered: status 404/)
  await receiver.close()
  assert.match(await refused(`webhook test --org default ${id}`), /was not delivered: .*the connection was refused/)
  assert.equal(receiver.forged, 0)
})
