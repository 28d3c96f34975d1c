import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseDriver, type DriverSurvey } from '../../src/cli/worker/choose-driver.ts'
import { formatDrivers } from '../../src/cli/commands/doctor.ts'

const FIT = { missing: [], hasSandboxes: false } as const
const MICROVM: DriverSurvey = { ...FIT, name: 'microsandbox', isolation: 'microVM', refusedFields: ['`a.b`'] }
const OCI: DriverSurvey = { ...FIT, name: 'oci', isolation: 'crun', refusedFields: ['`init`', '`c` of type `d`'] }
const unable = (survey: DriverSurvey): DriverSurvey => ({ ...survey, missing: ['no /dev/kvm', 'not root'] })
const keeping = (survey: DriverSurvey): DriverSurvey => ({ ...survey, hasSandboxes: true })

test('the driver that isolates most is taken where it can run, and the next one elsewhere', () => {
  assert.equal(chooseDriver('auto', [MICROVM, OCI]).name, 'microsandbox')
  assert.equal(chooseDriver('auto', [unable(MICROVM), OCI]).name, 'oci')
  assert.equal(chooseDriver('auto', [MICROVM, unable(OCI)]).name, 'microsandbox')
  assert.equal(chooseDriver('auto', [unable(MICROVM), unable(OCI)]).name, 'oci')
})

test('a driver goes on where only it has the disks of sandboxes', () => {
  assert.equal(chooseDriver('auto', [MICROVM, keeping(OCI)]).name, 'oci')
  assert.equal(chooseDriver('auto', [keeping(unable(MICROVM)), OCI]).name, 'microsandbox')
  assert.equal(chooseDriver('auto', [keeping(MICROVM), keeping(OCI)]).name, 'microsandbox')
})

test('what the settings name is taken, whatever the machine has; the simulated one only so', () => {
  for (const name of ['microsandbox', 'oci', 'simulated'] as const)
    assert.equal(chooseDriver(name, [unable(MICROVM), unable(OCI)]).name, name)
})

test('doctor tells of each driver, the preferred first, whether it can run or all that it lacks, what it refuses, and which is taken and why', () => {
  const surveys = [unable(MICROVM), keeping(OCI)]
  assert.deepEqual(formatDrivers(surveys, chooseDriver('auto', surveys)), [
    '\ndrivers, the preferred first:\n',
    "  microsandbox  can't run here: no /dev/kvm; not root\n",
    '                refuses: a.b\n',
    '  oci           can run here: crun; sandboxes of its own are kept here\n',
    '                refuses: init, c of type d\n',
    '  simulated     runs nothing, and is taken only by name\n',
    'sandboxes run with: oci, because the disks of sandboxes that are kept here are its own\n',
  ])
})
