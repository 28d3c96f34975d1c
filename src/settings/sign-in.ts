import { oneOf, type Setting } from './setting.ts'

/** The dashboard, and how members sign in to it. */
export const SIGN_IN_SETTINGS = {
  dashboard: {
    variable: 'SANDYARD_DASHBOARD',
    flag: null,
    fallback: 'on',
    unit: 'on, off',
    meaning: 'whether the dashboard is served at /, and members sign in to it; off: only keys are accepted',
    parse: oneOf<'on' | 'off'>(['on', 'off']),
  } satisfies Setting<'on' | 'off'>,
} as const
