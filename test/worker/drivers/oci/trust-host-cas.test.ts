import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { findCaBundle } from '../../../../src/worker/drivers/shared/ca-bundles.ts'
import { desiredRunWithMounts } from '../../../support/mounts.ts'
import { makeOciFixture, whyNoOci } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

const bundle = findCaBundle()
const skip = whyNoOci() ?? (bundle === null && 'this machine has no certificate authorities (ca-certificates)')

test('programs of a sandbox with trust_host_cas find the authorities of the machine', { skip }, async () => {
  await using cleanUp = new AsyncDisposableStack()
  const fixture = await makeOciFixture()
  cleanUp.defer(() => fixture.remove())
  const driver = await fixture.open()
  cleanUp.defer(() => driver.close())
  const network = { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: false, trust_host_cas: true }
  const desired = desiredRunWithMounts([], { network })
  await driver.start(desired, new AbortController().signal)
  cleanUp.defer(() => driver.remove(desired.run_id))
  const authorities = readFileSync(bundle ?? '', 'utf8').trimEnd()
  for (const path of ['$NODE_EXTRA_CA_CERTS', '$SSL_CERT_FILE', '/etc/ssl/certs/ca-certificates.crt']) {
    const { stdout } = await fixture.exec(desired.run_id, ['sh', '-c', `cat ${path}`])
    assert.ok(stdout.includes(authorities), path)
  }
})
