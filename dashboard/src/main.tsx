import { render } from 'preact'
import { App } from './app.tsx'
import './app.css'
import { startRouter } from './lib/router.ts'
import { readSession } from './lib/session.ts'
import './lib/theme.ts'

const root = document.getElementById('app')
if (root === null) throw new Error('index.html has no element with the id app')
startRouter()
void readSession()
render(<App />, root)
