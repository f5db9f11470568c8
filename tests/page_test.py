#!/usr/bin/env python3
"""Uses the live page as people do, in a real Chromium without a window, over its debugging pipe.

  page_test.py URL              checks a page of a 2-D model: drawing, clicks, keys, sizes, themes
  page_test.py URL --shots DIR NAME FRAMES [IMAGE...]
                                takes pictures of any page, light and dark, desktop and phone, once it has seen
                                so many checkpoints; points or the images named are scored first

Needs nothing but Python and chromium. Exit code 77: there is no chromium.
"""
import base64, json, os, shutil, subprocess, sys, tempfile, time

PROGRAMS = 'chromium-headless-shell', 'chromium', 'chromium-browser'
DESKTOP, PHONE = (1280, 900, 1, False), (390, 844, 2, True)


class Browser:
    def __init__(self):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if not program:
            print('no chromium: apt-get install chromium-headless-shell')
            sys.exit(77)
        self.profile = tempfile.mkdtemp(prefix='ddaebm-chromium-')
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def place():  # the browser reads commands from 3 and answers on 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3), os.dup2(b, 4)
        self.process = subprocess.Popen(
            [program, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
             '--hide-scrollbars', '--remote-debugging-pipe', f'--user-data-dir={self.profile}', 'about:blank'],
            preexec_fn=place, pass_fds=(3, 4, to_browser, from_browser), stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self.number, self.buffer, self.session, self.events = 0, b'', None, []
        target = next(t for t in self.call('Target.getTargets')['targetInfos'] if t['type'] == 'page')
        self.session = self.call('Target.attachToTarget', targetId=target['targetId'], flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.call(domain + '.enable')

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **params):
        self.number += 1
        message = {'id': self.number, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b'\0')
        while True:
            while b'\0' not in self.buffer:
                part = os.read(self.read_end, 1 << 16)
                if not part:
                    raise RuntimeError('chromium ended')
                self.buffer += part
            text, self.buffer = self.buffer.split(b'\0', 1)
            answer = json.loads(text)
            if answer.get('id') == self.number:
                if 'error' in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer['result']
            if 'method' in answer:
                self.events.append(answer)

    def js(self, text):
        found = self.call('Runtime.evaluate', expression=text, awaitPromise=True, returnByValue=True)
        if 'exceptionDetails' in found:
            raise RuntimeError(f"{text}: {found['exceptionDetails']}")
        return found['result'].get('value')

    def wait(self, condition, seconds=60):
        for _ in range(int(seconds * 10)):
            if self.js(condition):
                return
            time.sleep(0.1)
        raise AssertionError(f'never came: {condition}')

    def emulate(self, size, dark, still):
        width, height, scale, mobile = size
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.call('Emulation.setEmulatedMedia', features=[
            {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'},
            {'name': 'prefers-reduced-motion', 'value': 'reduce' if still else 'no-preference'}])

    def open(self, url, size=DESKTOP, dark=False, still=True):
        self.emulate(size, dark, still)
        self.call('Page.navigate', url=url)
        self.wait("document.body && 'ready' in document.body.dataset")

    def click(self, x, y):
        for kind in ('mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', clickCount=1)

    def press(self, key, code):
        for kind in ('rawKeyDown', 'keyUp'):
            self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def shot(self, path, tallest):
        size = self.call('Page.getLayoutMetrics')['cssContentSize']
        box = {'x': 0, 'y': 0, 'width': size['width'], 'height': min(size['height'], tallest), 'scale': 1}
        data = self.call('Page.captureScreenshot', format='png', clip=box, captureBeyondViewport=True)['data']
        with open(path, 'wb') as file:
            file.write(base64.b64decode(data))


def check(browser, url):
    page = browser
    page.open(url)
    scored = "document.querySelectorAll('#scores li').length"
    assert page.js("document.querySelectorAll('#charts svg').length") >= 2, 'curves'
    assert page.js("document.querySelectorAll('#histogram .bar').length") > 10, 'histogram'
    # The map has more than one colour, and the points of x_0 are where those of noise were not.
    pixels = "[...document.getElementById('canvas').getContext('2d').getImageData(0, 0, 960, 960).data]"
    assert page.js(f"new Set({pixels}.filter((_, i) => i % 4 === 0)).size") > 20, 'landscape'
    digest = f"{pixels}.reduce((a, v, i) => (a * 31 + v) % 1000003, 7)"
    samples = page.js(digest)
    page.js("document.getElementById('step').value = 0; document.getElementById('step').dispatchEvent(new Event('input'))")
    assert page.js("document.getElementById('step-name').textContent").strip() == 'x₄ noise'
    assert page.js(digest) != samples, 'steps look the same'

    # A click scores where it lands.
    box = page.js("(() => { const b = document.getElementById('canvas').getBoundingClientRect(); return [b.left, b.top, b.width]; })()")
    page.click(box[0] + box[2] * 0.25, box[1] + box[2] * 0.75)
    page.wait(f"{scored} === 1")
    text = page.js("document.querySelector('#scores li').textContent")
    window = json.loads(page.js("fetch('/v1/model').then((r) => r.text())"))['model']['window']
    point = [float(v) for v in text[text.index('(') + 1:text.index(')')].split(',')]
    for i, (axis, share) in enumerate((('x', 0.25), ('y', 0.25))):
        low, high = window[axis]
        assert abs(point[i] - (low + share * (high - low))) < 0.02 * (high - low), (point, window)
    assert 'p-value' in text and ('in' in text or 'out' in text), text
    assert page.js("document.querySelectorAll('#histogram .mark').length") == 2

    # The same by keyboard alone: tab to the map, move, press Enter.
    page.js("document.activeElement.blur()")
    for _ in range(12):
        page.press('Tab', 9)
        if page.js("document.activeElement.id") == 'canvas':
            break
    assert page.js("document.activeElement.id") == 'canvas', 'the map cannot be reached by Tab'
    page.press('ArrowLeft', 37), page.press('ArrowUp', 38), page.press('Enter', 13)
    page.wait(f"{scored} === 2")
    for _ in range(12):
        page.press('Tab', 9)
        if page.js("document.activeElement.id") == 'play':
            break
    # A button is pressed by the character, not by the key alone.
    page.call('Input.dispatchKeyEvent', type='keyDown', key='Enter', code='Enter', text='\r', windowsVirtualKeyCode=13)
    page.wait("document.getElementById('play').getAttribute('aria-pressed') === 'true'", 5)

    # Everything that can be used has a name.
    unnamed = page.js("""[...document.querySelectorAll('button, input, select, textarea, canvas[tabindex]')]
      .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.id)""")
    assert unnamed == [], unnamed

    # A phone: nothing sticks out. Dark and light differ, by the system and by the button.
    page.open(url, PHONE)
    assert page.js("document.documentElement.scrollWidth <= innerWidth"), 'wider than the phone'
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.js(paper)
    page.open(url, DESKTOP, dark=True)
    assert page.js(paper) != light
    page.js("document.getElementById('theme').click()")
    assert page.js(paper) == light, 'the button overrides the system'
    page.js("document.getElementById('theme').click()")
    assert page.js(paper) != light
    page.js("localStorage.clear()")

    # Without reduced motion the steps play on their own.
    page.open(url, DESKTOP, still=False)
    page.wait("document.getElementById('play').getAttribute('aria-pressed') === 'true'", 5)
    page.wait("document.getElementById('step-name').textContent.includes('noise')", 20)

    # Nothing was refused by the policy, nothing failed, nothing was fetched from elsewhere.
    for event in browser.events:
        if event['method'] == 'Network.requestWillBeSent':
            wanted = event['params']['request']['url']
            assert wanted.startswith((url, 'data:', 'blob:', 'about:')), wanted
        if event['method'] == 'Log.entryAdded' and event['params']['entry']['level'] == 'error':
            raise AssertionError(event['params']['entry'])
        if event['method'] == 'Runtime.exceptionThrown':
            raise AssertionError(event['params'])
    print('the page works')


def drop_files(browser, paths):
    root = browser.call('DOM.getDocument')['root']['nodeId']
    node = browser.call('DOM.querySelector', nodeId=root, selector='#files')['nodeId']
    browser.call('DOM.setFileInputFiles', nodeId=node, files=[os.path.abspath(p) for p in paths])


def shots(browser, url, folder, name, frames, images):
    browser.open(url)
    browser.wait(f"document.getElementById('film').children.length >= {frames}", 1200)
    if images:
        drop_files(browser, images)
        browser.wait(f"document.querySelectorAll('#scores .numbers').length === {len(images)}")
    elif browser.js("document.getElementById('canvas').className") == 'plane':
        for share in ('[0.12, 0.9]', '[0.3, 0.62]', 'toCanvas(path.at(-1)[0], 1)'):  # the last is a sample
            browser.js(f"cursor = {share}; scorePoint(cursor)")
        browser.wait("document.querySelectorAll('#scores .numbers').length === 3")
    for label, size, tallest in (('desktop', DESKTOP, 3000), ('phone', PHONE, 1250)):
        for theme in ('light', 'dark'):
            browser.emulate(size, theme == 'dark', still=True)
            time.sleep(0.7)
            browser.shot(f'{folder}/{name}-{label}-{theme}.png', tallest)


if __name__ == '__main__':
    browser = Browser()
    try:
        if '--shots' in sys.argv:
            at = sys.argv.index('--shots')
            shots(browser, sys.argv[1], sys.argv[at + 1], sys.argv[at + 2], int(sys.argv[at + 3]), sys.argv[at + 4:])
        else:
            check(browser, sys.argv[1])
    finally:
        browser.close()
