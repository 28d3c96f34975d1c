/**
 * The factor for the time limits of tests: 1 unless SANDYARD_TEST_PACE sets it. In the emulated guest of `npm run test:microvm`
 * everything takes ten times as long.
 */
export const TIMEOUT_FACTOR = Math.max(1, Number(process.env['SANDYARD_TEST_PACE'] ?? 1))
