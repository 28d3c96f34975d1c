import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { parseSshKey } from '../../../src/domain/orgs/ssh-key.ts'
import { whyNoOpenSsh } from '../../support/openssh.ts'
import { makeSshKey } from '../../support/ssh-keys.ts'

test('keys of every accepted type have the fingerprint that ssh-keygen prints', { skip: whyNoOpenSsh() }, () => {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-ssh-key-'))
  const types = [['ed25519', '256'], ['rsa', '2048'], ['ecdsa', '256'], ['ecdsa', '384'], ['ecdsa', '521']] as const // prettier-ignore
  for (const [type, bits] of types) {
    const path = join(dir, type + bits)
    execFileSync('ssh-keygen', ['-q', '-t', type, '-b', bits, '-N', '', '-f', path])
    const printed = execFileSync('ssh-keygen', ['-l', '-f', `${path}.pub`], { encoding: 'utf8' }).split(' ')[1]
    const line = readFileSync(`${path}.pub`, 'utf8')
    const key = parseSshKey(line)
    assert.equal(key?.fingerprint, printed)
    assert.ok(line.startsWith(`${String(key?.text)} `), 'the comment is left out')
    assert.equal(parseSshKey(readFileSync(path, 'utf8')), null, 'a private key is refused')
  }
  execFileSync('ssh-keygen', ['-q', '-t', 'rsa', '-b', '1024', '-N', '', '-f', join(dir, 'weak')])
  assert.equal(parseSshKey(readFileSync(join(dir, 'weak.pub'), 'utf8')), null, 'a weak RSA key is refused')
  rmSync(dir, { recursive: true })
})

test('anything but one whole key of a known type is refused', () => {
  const line = makeSshKey()
  assert.ok(parseSshKey(`${line}\n`) !== null)
  const [type = '', base64 = ''] = line.split(' ')
  const bad = [
    '',
    type,
    `command="id" ${line}`,
    `${line}\n${makeSshKey()}`,
    `${type} ${base64.slice(0, -8)}`,
    `${type} ${base64}AAAA`,
    `ssh-rsa ${base64}`,
    `ssh-dss ${base64}`,
    `${type} ${'A'.repeat(9000)}`,
  ]
  for (const text of bad) assert.equal(parseSshKey(text), null, text)
})
