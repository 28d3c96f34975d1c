import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseDriver, type DriverSurvey } from '../../src/cli/worker/choose-driver.ts'
import { formatDrivers } from '../../src/cli/commands/doctor.ts'

const FIT = { missing: [], hasSandboxes: false } as const
const MICROVM: DriverSurvey = { ...FIT, name: 'microsandbox', isolation: 'microVM', refusedFields: ['`a.b`'] }
const OCI: DriverSurvey = { ...FIT, name: 'oci', isolation: 'crun', refusedFields: ['`init`', '`c` of type `d`'] }
const unable = (survey: DriverSurvey): DriverSurvey => ({ ...survey, missing: ['no /dev/kvm', 'not root'] })
const keeping = (survey: DriverSurvey): DriverSurvey => ({ ...survey, hasSandboxes: true })

test('the driver with the strongest isolation is chosen where it can run, and the next one elsewhere', () => {
  assert.equal(chooseDriver('auto', [MICROVM, OCI]).name, 'microsandbox')
  assert.equal(chooseDriver('auto', [unable(MICROVM), OCI]).name, 'oci')
  assert.equal(chooseDriver('auto', [MICROVM, unable(OCI)]).name, 'microsandbox')
  assert.equal(chooseDriver('auto', [unable(MICROVM), unable(OCI)]).name, 'oci')
})

test('a machine with disks of sandboxes of one driver keeps that driver', () => {
  assert.equal(chooseDriver('auto', [MICROVM, keeping(OCI)]).name, 'oci')
  assert.equal(chooseDriver('auto', [keeping(unable(MICROVM)), OCI]).name, 'microsandbox')
  assert.equal(chooseDriver('auto', [keeping(MICROVM), keeping(OCI)]).name, 'microsandbox')
})

test('the driver that the setting names is chosen, whatever the machine has', () => {
  for (const name of ['microsandbox', 'oci', 'simulated'] as const)
    assert.equal(chooseDriver(name, [unable(MICROVM), unable(OCI)]).name, name)
})

test('doctor lists the drivers in order of preference, what each one lacks and refuses, and the chosen driver with the reason', () => {
  const surveys = [unable(MICROVM), keeping(OCI)]
  assert.deepEqual(formatDrivers(surveys, chooseDriver('auto', surveys)), [
    '\ndrivers, in order of preference:\n',
    "  microsandbox  can't run here: no /dev/kvm; not root\n",
    '                refuses: a.b\n',
    '  oci           can run here: crun; this machine holds sandboxes of it\n',
    '                refuses: init, c of type d\n',
    '  simulated     runs nothing; used only when SANDYARD_DRIVER names it\n',
    'sandboxes run with: oci, because this machine holds disks of its sandboxes\n',
  ])
})
